(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $e (export "describe" (func $f)) (export "run" (func $f)))
  (export "backlot:producer/lifecycle@0.1.0" (instance $e))
  (export "backlot:producer/output@0.1.0" (instance $e)))

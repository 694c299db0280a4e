(component
  (import "wasi:cli/exit@0.2.12" (instance (export "exit-with-code" (func (param "code" u8)))))
  (import "acme:secret/vault@1.0.0" (instance (export "open" (func))))
  (core module $m (memory (export "m") 1) (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $e (export "run" (func $run)))
  (export "wasi:cli/run@0.3.0" (instance $e)))

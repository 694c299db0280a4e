;; A stepped producer built against the next version of the contract.
;;
;; Without an input it is skipped with a warning. With one it waits for a stop, and
;; tells the reason. It reports `at work` at 5 %, and what it hands over is the name
;; of its kind.
(component
  (import "backlot:producer/types@0.2.0" (instance $types
    (type $manner' (flags "stdout-is-output" "stops-by-drop"))
    (export "manner" (type $manner (eq $manner')))
    (type $descriptor (record
      (field "kind" string)
      (field "summary" string)
      (field "input-schema" (option string))
      (field "manner" $manner)))
    (export "descriptor" (type (eq $descriptor)))
    (type $cause' (enum "spawn" "retry" "step" "answer"))
    (export "cause" (type $cause (eq $cause')))
    (type $request (record
      (field "task" string)
      (field "label" string)
      (field "input" string)
      (field "job" (option string))
      (field "attempt" u32)
      (field "step" u32)
      (field "cause" $cause)
      (field "state" (option string))
      (field "last-failure" (option string))
      (field "answer" (option string))
      (field "end-by-ms" (option u64))))
    (export "request" (type (eq $request)))
    (type $refusal (variant (case "invalid-input" string) (case "unavailable" string)))
    (export "refusal" (type (eq $refusal)))
    (type $stop-refusal (variant (case "not-now" string) (case "broken" string)))
    (export "stop-refusal" (type (eq $stop-refusal)))
    (type $ending' (enum "completed" "killed" "failed" "skipped"))
    (export "ending" (type $ending (eq $ending')))
    (type $outcome (record
      (field "ending" $ending)
      (field "detail" (option string))
      (field "output" (option string))
      (field "warnings" (list string))))
    (export "outcome" (type (eq $outcome)))))
  (alias export $types "descriptor" (type $descriptor))
  (alias export $types "request" (type $request))
  (alias export $types "refusal" (type $refusal))
  (alias export $types "stop-refusal" (type $stop-refusal))
  (alias export $types "outcome" (type $outcome))
  ;; The types of an interface that is exported need a name from somewhere.
  (import "backlot:producer/steps@0.2.0" (instance $steps-types
    (type $closing' (record (field "state" (option string)) (field "failure" (option string))))
    (export "closing" (type $closing (eq $closing')))
    (type $continuation' (record
      (field "kind" (option string))
      (field "input" string)
      (field "state" (option string))))
    (export "continuation" (type $continuation (eq $continuation')))
    (type $question' (record
      (field "prompt" string)
      (field "schema" (option string))
      (field "state" (option string))))
    (export "question" (type $question (eq $question')))
    (type $next (variant
      (case "end" $closing)
      (case "proceed" $continuation)
      (case "ask" $question)))
    (export "next" (type (eq $next)))))
  (alias export $steps-types "next" (type $next))
  (import "backlot:producer/host@0.2.0" (instance $host
    (export "cancelled" (func async (result (option string))))
    (export "report" (func (param "detail" string) (param "percent" (option u8))))))

  (core module $store
    (memory (export "memory") 1)
    (global $end (mut i32) (i32.const 1024))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      global.get $end
      (global.set $end (i32.and (i32.const -8)
        (i32.add (global.get $end) (i32.add (local.get 3) (i32.const 15)))))))
  (core instance $store (instantiate $store))
  (alias core export $store "memory" (core memory $memory))
  (alias core export $store "realloc" (core func $realloc))

  (core func $cancelled (canon lower (func $host "cancelled") async
    (memory $memory) (realloc $realloc)))
  (core func $report (canon lower (func $host "report") (memory $memory)))
  (core func $return (canon task.return (result $outcome) (memory $memory)))
  (core func $set-new (canon waitable-set.new))
  (core func $join (canon waitable.join))
  (core func $subtask-drop (canon subtask.drop))

  (core module $work
    (import "" "memory" (memory 1))
    (import "" "cancelled" (func $cancelled (param i32) (result i32)))
    (import "" "report" (func $report (param i32 i32 i32 i32)))
    (import "" "return" (func $return (param i32 i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "" "set-new" (func $set-new (result i32)))
    (import "" "join" (func $join (param i32 i32)))
    (import "" "subtask-drop" (func $subtask-drop (param i32)))
    ;; The descriptor: the kind, the summary, no schema and no manner.
    (data (i32.const 8) "\80\00\00\00\04\00\00\00\90\00\00\00\0d\00\00\00")
    ;; At 64 there is a result that is no error.
    ;; What is handed over next: all of it.
    (data (i32.const 96) "\80\00\00\00\04\00\00\00")
    (data (i32.const 128) "soon")
    (data (i32.const 144) "speaks of new")
    (data (i32.const 160) "at work")
    (data (i32.const 176) "no input")
    ;; The list of warnings.
    (data (i32.const 208) "\b0\00\00\00\08\00\00\00")
    (global $waits (mut i32) (i32.const 0))
    (func (export "describe") (result i32) (i32.const 8))
    (func (export "run") (param $request i32) (result i32)
      ;; The length of the input.
      (global.set $waits (i32.load offset=20 (local.get $request)))
      (call $report (i32.const 160) (i32.const 7) (i32.const 1) (i32.const 5))
      (i32.const 64))
    (func (export "cancel") (param i32 i32 i32 i32 i64) (result i32) (i32.const 64))
    (func (export "done") (result i32)
      (local $waiting i32)
      (local $set i32)
      (if (i32.eqz (global.get $waits))
        (then
          (call $end (i32.const 3) (i32.const 1))
          (return (i32.const 0))))
      ;; A subtask that has begun; it cannot have returned.
      (local.set $waiting (call $cancelled (i32.const 192)))
      (local.set $set (call $set-new))
      (call $join (i32.shr_u (local.get $waiting) (i32.const 4)) (local.get $set))
      ;; Waits for what is in the set.
      (i32.or (i32.const 2) (i32.shl (local.get $set) (i32.const 4))))
    (func (export "woken") (param $event i32) (param $subtask i32) (param $state i32) (result i32)
      (call $subtask-drop (local.get $subtask))
      (call $end (i32.const 1) (i32.const 0))
      (i32.const 0))
    ;; The detail is what `cancelled` has returned, if it was asked.
    (func $end (param $ending i32) (param $warnings i32)
      (call $return (local.get $ending)
        (i32.load8_u (i32.const 192)) (i32.load (i32.const 196)) (i32.load (i32.const 200))
        (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 208) (local.get $warnings)))
    (func (export "read-output") (param $max i32) (result i32)
      ;; The second time there is nothing, at 64.
      (i32.sub (i32.const 96) (global.get $read))
      (global.set $read (i32.const 32)))
    (global $read (mut i32) (i32.const 0))
    ;; The same again, by the same kind; without an input it traps.
    (func (export "after") (param $request i32) (result i32)
      (if (i32.eqz (i32.load offset=20 (local.get $request))) (then unreachable))
      (i32.store8 offset=256 (i32.const 0) (i32.const 1))
      (i32.store8 offset=260 (i32.const 0) (i32.const 1))
      (i64.store offset=264 (i32.const 0) (i64.load (i32.const 96)))
      (i64.store offset=272 (i32.const 0) (i64.load offset=16 (local.get $request)))
      (i32.const 256))
    ;; The state itself.
    (func (export "render") (param $state i32) (param $length i32) (result i32)
      (i32.store8 offset=320 (i32.const 0) (i32.const 1))
      (i32.store offset=324 (i32.const 0) (local.get $state))
      (i32.store offset=328 (i32.const 0) (local.get $length))
      (i32.const 320)))
  (core instance $work (instantiate $work (with "" (instance
    (export "memory" (memory $memory))
    (export "cancelled" (func $cancelled))
    (export "report" (func $report))
    (export "return" (func $return))
    (export "set-new" (func $set-new))
    (export "join" (func $join))
    (export "subtask-drop" (func $subtask-drop))))))

  (func $describe (result $descriptor)
    (canon lift (core func $work "describe") (memory $memory)))
  (func $run (param "request" $request) (result (result (error $refusal)))
    (canon lift (core func $work "run") (memory $memory) (realloc $realloc)))
  (func $cancel (param "reason" (option string)) (param "grace-ms" (option u64))
    (result (result (error $stop-refusal)))
    (canon lift (core func $work "cancel") (memory $memory) (realloc $realloc)))
  (func $done async (result $outcome)
    (canon lift (core func $work "done") async (callback (core func $work "woken"))
      (memory $memory)))
  (instance $lifecycle
    (export "describe" (func $describe))
    (export "run" (func $run))
    (export "cancel" (func $cancel))
    (export "done" (func $done)))
  (export "backlot:producer/lifecycle@0.2.0" (instance $lifecycle))

  (func $read-output (param "max-bytes" u32) (result (list u8))
    (canon lift (core func $work "read-output") (memory $memory)))
  (instance $output (export "read-output" (func $read-output)))
  (export "backlot:producer/output@0.2.0" (instance $output))

  (func $after (param "request" $request) (param "ended" $outcome) (result $next)
    (canon lift (core func $work "after") (memory $memory) (realloc $realloc)))
  (func $render (param "state" string) (result (option string))
    (canon lift (core func $work "render") (memory $memory) (realloc $realloc)))
  (instance $steps
    (export "after" (func $after))
    (export "render" (func $render)))
  (export "backlot:producer/steps@0.2.0" (instance $steps)))

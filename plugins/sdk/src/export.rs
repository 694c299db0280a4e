//! The exports of a component, made of a [`Producer`].

use crate::bindings::{exported_lifecycle, exported_output, exported_steps, types};
use crate::input::Input;
use crate::output::Pending;
use crate::producer::{Form, Producer, Refusal, Stream};
use crate::request::Request;
use crate::stepped::Stepped;
use crate::task::{Shared, Stop, Task};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;

/// Makes a component of a [`Producer`].
///
/// The word before the type repeats the producer's [`Producer::Form`], since it
/// decides which functions the component exports: `stream: Type`, `final: Type`
/// or `printed: Type`. A word that does not fit does not compile. A crate
/// exports one producer.
///
/// A producer that is [`Stepped`](crate::Stepped) as well is exported with
/// `stepped: Type`, which is short for `stepped stream: Type`, or with `stepped
/// final: Type` or `stepped printed: Type`.
#[macro_export]
macro_rules! export {
    (stream: $producer:ty) => {
        $crate::export!(@lifecycle $producer, Stream);
        const _: () = {
            type Exported = $crate::__private::Exported<$producer>;
            $crate::__private::output::export_output!(
                Exported with_types_in $crate::__private::output
            );
        };
    };
    (final: $producer:ty) => {
        $crate::export!(@lifecycle $producer, Final);
    };
    (printed: $producer:ty) => {
        $crate::export!(@lifecycle $producer, Printed);
    };
    (stepped: $producer:ty) => {
        $crate::export!(stepped stream: $producer);
    };
    (stepped $form:tt: $producer:ty) => {
        $crate::export!($form: $producer);
        const _: () = {
            type Exported = $crate::__private::Exported<$producer>;
            $crate::__private::steps::export_steps!(
                Exported with_types_in $crate::__private::steps
            );
        };
    };
    (@lifecycle $producer:ty, $form:ident) => {
        const _: () = {
            $crate::__private::expect_form::<$producer, $crate::$form>();
            // A descriptor that is wrong shows at compile time.
            let _ = <$producer as $crate::Producer>::DESCRIPTOR;
            type Exported = $crate::__private::Exported<$producer>;
            $crate::__private::lifecycle::export_lifecycle!(
                Exported with_types_in $crate::__private::lifecycle
            );
        };
    };
}

/// Compiles for a producer of the form `F` only.
pub const fn expect_form<P: Producer<Form = F>, F: Form>() {}

/// The exports of the producer `P`.
pub struct Exported<P>(PhantomData<P>);

thread_local! {
    /// The one task of this instance.
    static INSTANCE: RefCell<Option<Instance>> = const { RefCell::new(None) };
}

struct Instance {
    shared: Rc<Shared>,
    /// The work, until `done` takes it.
    work: Option<Work>,
}

type Work = Pin<Box<dyn Future<Output = types::Outcome>>>;

impl Instance {
    /// Starts the work of `P`. Its future is made here and driven by `done`,
    /// because nothing can be awaited in a plain export.
    fn start<P: Producer>(request: Request) -> Result<Self, Refusal> {
        let input = P::Input::parse(&request.input)?;
        let producer = Rc::new(P::start(input, &request)?);
        let output = Rc::<Pending>::default();
        let asked = Rc::downgrade(&producer);
        let stop = Stop::new(
            Box::new(move |reason| match asked.upgrade() {
                Some(producer) => producer.cancel(reason),
                // The work has ended by itself.
                None => Ok(()),
            }),
            output.clone(),
        );
        let shared = Rc::new(Shared { request, output, stop });
        let task = Task::new(shared.clone());
        let work = Box::pin(async move {
            match producer.run(&task).await {
                Ok(completed) => completed.into_outcome(),
                Err(error) => error.into_outcome(),
            }
        });
        Ok(Self { shared, work: Some(work) })
    }
}

/// Returns what the work and the exports share, if work was started. A clone,
/// so that nothing is borrowed while a producer's own code runs.
fn shared() -> Option<Rc<Shared>> {
    INSTANCE.with_borrow(|instance| Some(instance.as_ref()?.shared.clone()))
}

impl<P: Producer> exported_lifecycle::Guest for Exported<P> {
    fn describe() -> types::Descriptor {
        P::DESCRIPTOR.to_wit::<P::Form>()
    }

    fn run(request: types::Request) -> Result<(), types::Refusal> {
        if shared().is_some() {
            return Err(types::Refusal::Unavailable("this instance has a task already".to_owned()));
        }
        let instance = Instance::start::<P>(request.into())?;
        INSTANCE.set(Some(instance));
        Ok(())
    }

    fn cancel(reason: Option<String>) -> Result<(), types::StopRefusal> {
        match shared() {
            Some(shared) => Ok(shared.stop.ask(reason)?),
            None => Err(types::StopRefusal::Broken("nothing was started".to_owned())),
        }
    }

    async fn done() -> types::Outcome {
        let work = INSTANCE.with_borrow_mut(|instance| instance.as_mut()?.work.take());
        match work {
            Some(work) => work.await,
            None => types::Outcome {
                ending: types::Ending::Failed,
                detail: Some("nothing was started, or it was awaited twice".to_owned()),
                output: None,
            },
        }
    }
}

impl<P: Producer<Form = Stream>> exported_output::Guest for Exported<P> {
    fn read_output(max_bytes: u32) -> Vec<u8> {
        match shared() {
            Some(shared) => shared.output.collect(max_bytes as usize),
            None => Vec::new(),
        }
    }
}

impl<P: Producer + Stepped> exported_steps::Guest for Exported<P> {
    fn after(request: types::Request, ended: types::Outcome) -> exported_steps::Next {
        P::after(&request.into(), &ended.into()).into()
    }

    fn render(state: String) -> Option<String> {
        P::render(&state)
    }
}

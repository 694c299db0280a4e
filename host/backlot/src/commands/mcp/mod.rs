//! `backlot mcp`: the host as a server of the Model Context Protocol on stdin and stdout.
//!
//! The messages go to the host that holds the data folder, or else to this process, which
//! holds it from then on. Nothing but messages is written to stdout.

mod input;
mod pipes;
mod relay;

use std::time::Duration;

use backlot_jobs::JobId;
use backlot_surface::{McpStream, Principal, Reason, mcp::serve_stream};
use tokio::{
    io::{AsyncRead, DuplexStream, duplex, split},
    task::JoinHandle,
    time::timeout,
};

use self::{
    input::Input,
    pipes::Out,
    relay::{End, Relay},
};
use super::{
    follow::Signals,
    jobs::{
        Told,
        reach::{self, Acting, Stays},
    },
};
use crate::{
    cli::{Common, Mcp},
    config::{Config, Reload},
    console::Console,
    exit::Exit,
    holding::{Holding, HoldingConfig},
    render,
    settings::Settings,
};

/// How much is on its way within this process, in each direction.
const PIPE_BYTES: usize = 64 << 10;
/// How long the server in this process has to answer what was asked last.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long another host is waited for where the one before is gone: as long as a service
/// manager takes to start it anew. After that this process is the host.
const BACK: Duration = Duration::from_secs(10);

pub(crate) async fn mcp(args: Mcp, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let agent = match Agent::of(args, common, console) {
        Ok(agent) => agent,
        Err(told) => return Ok(told.tell(false, console).await),
    };
    agent.tell_session();
    let mut relay = Relay::new(Out::new(console.out.clone()), Input::new(pipes::messages()));
    let mut is_first = true;
    loop {
        let opened = tokio::select! {
            opened = agent.open(is_first) => opened,
            // Nobody is there any more to answer to.
            () = relay.left() => return Ok(Exit::Completed),
            _ = signals.next() => return Ok(Exit::Completed),
        };
        let end = match opened {
            Ok(Server::There(stream)) => {
                tokio::select! {
                    end = relay.run(stream) => end?,
                    _ = signals.next() => End::Client,
                }
            }
            Ok(Server::Here(here)) => return agent.serve_here(*here, relay, &mut signals).await,
            Err(told) => {
                told.tell(false, console).await;
                // It cannot be waited for any longer by whoever has asked.
                relay.give_up(&told.line()).await;
                return Ok(if is_first { told.exit() } else { Exit::Failed });
            }
        };
        match end {
            End::Client => return Ok(Exit::Completed),
            End::Host => {
                console.err.note(&render::complaint("the host is gone; another one is looked for"));
                relay.give_up("the host is gone, and another one is looked for").await;
            }
        }
        is_first = false;
    }
}

/// An agent, and how a host is set up for it in this process.
struct Agent<'a> {
    session: String,
    is_named: bool,
    settings: Settings,
    common: &'a Common,
    console: &'a Console,
}

/// Who answers.
enum Server {
    /// The host that holds the folder.
    There(Box<McpStream>),
    /// This process.
    Here(Box<Here>),
}

/// A server in this process.
struct Here {
    holding: Holding,
    stream: DuplexStream,
    /// Ends it once it has answered what there is.
    close: tokio::sync::oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl<'a> Agent<'a> {
    fn of(args: Mcp, common: &'a Common, console: &'a Console) -> Result<Self, Told> {
        let is_named = args.session.is_some();
        let session = match args.session {
            Some(session) => session,
            None => {
                let id = JobId::random().map_err(|error| Told::by(&error))?;
                format!("mcp-{id}")
            }
        };
        // Nobody asks as what is no session.
        Principal::operator("operator").caller(Some(&session))?;
        let settings = common.settings();
        let mut settings =
            settings.map_err(|error| Told::new(Reason::Invalid, error.to_string()))?;
        if !args.expose.is_empty() {
            settings.mcp.expose = args.expose;
        }
        Ok(Self { session, is_named, settings, common, console })
    }

    /// Tells how its jobs are found again.
    fn tell_session(&self) {
        if !self.is_named && !self.common.quiet {
            let session = &self.session;
            self.console.err.note(&format!(
                "session {session}: its jobs are found again with `backlot mcp --session {session}`"
            ));
        }
    }

    /// Finds somebody who answers.
    async fn open(&self, is_first: bool) -> Result<Server, Told> {
        if !is_first && let Ok(stream) = timeout(BACK, self.back()).await {
            return Ok(Server::There(Box::new(stream?)));
        }
        let set_up = |config: HoldingConfig| HoldingConfig {
            host: Config { reload: Reload::Watch, ..config.host },
            mcp: self.settings.mcp.clone(),
            ..config
        };
        let acting = reach::act_with(self.common, "backlot mcp", Stays::WhileJobsRun, set_up);
        let Acting { client, folder, holding } = acting.await?;
        match holding {
            Some(holding) => Ok(Server::Here(Box::new(self.serve(holding)))),
            None => {
                let stream = client.for_session(self.session.clone()).mcp().await?;
                // The client's address may lead through it.
                drop(folder);
                Ok(Server::There(Box::new(stream)))
            }
        }
    }

    /// Waits until a host holds the folder, and connects to it.
    async fn back(&self) -> Result<McpStream, Told> {
        loop {
            let connected = async {
                let (client, _folder) = super::status::running(self.common).await?;
                Ok::<_, Told>(client.for_session(self.session.clone()).mcp().await?)
            };
            match connected.await {
                Ok(stream) => return Ok(stream),
                Err(told) if told.is_of_a_host_that_is_gone() => {}
                Err(told) if told.exit() == Exit::Refused => {}
                Err(told) => return Err(told),
            }
            tokio::time::sleep(reach::AGAIN).await;
        }
    }

    /// Serves it in this process.
    fn serve(&self, holding: Holding) -> Here {
        let (stream, far) = duplex(PIPE_BYTES);
        let (close, closed) = tokio::sync::oneshot::channel();
        let (read, write) = split(far);
        let principal = Principal::user(self.session.clone(), self.session.as_str().into());
        let api = holding.api().clone();
        let served = tokio::spawn(async move {
            let closing = async {
                // Also when whoever could say so is gone.
                let _ = closed.await;
            };
            let served = Box::pin(serve_stream(api, principal, read, write, closing)).await;
            if let Err(failure) = served {
                tracing::warn!("the client was not served: {failure}");
            }
        });
        Here { holding, stream, close, served }
    }

    /// Hands messages on within this process until the client leaves or the process is to
    /// end, and ends the host.
    async fn serve_here(
        &self,
        here: Here,
        mut relay: Relay<impl AsyncRead + Unpin>,
        signals: &mut Signals,
    ) -> anyhow::Result<Exit> {
        let Here { holding, stream, close, served } = here;
        super::warn(self.console, holding.host(), self.common).await;
        let ended = tokio::select! {
            ended = relay.run(stream) => ended.map(|_| ()),
            () = holding.asked_to_end() => Ok(()),
            _ = signals.next() => Ok(()),
        };
        let _ = close.send(());
        let _ = timeout(FAREWELL, served).await;
        tokio::select! {
            _ = holding.end() => {}
            _ = signals.next() => return Ok(Exit::Killed),
        }
        ended.map(|()| Exit::Completed)
    }
}

//! The loop: signals, the schedule, the socket and the metrics, and the thread that does the work.

use super::message::{Event, Handle, Message};
use super::notify::notify;
use super::worker::{self, Setup};
use super::{ServiceError, http, socket, system};
use crate::config::Loaded;
use crate::error::{Error, chain};
use crate::evidence::engine::EvidenceChoice;
use crate::removal::hold::Stores;
use crate::render::output::Output;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc as channel, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How the service is run.
pub struct ServiceOptions {
    /// The configuration.
    pub loaded: Loaded,
    /// Which evidence to take.
    pub evidence: EvidenceChoice,
    /// Tell of every entry.
    pub per_entry: bool,
    /// Where passes are told.
    pub output: Output,
}

/// Runs in the foreground until a signal ends it.
///
/// # Errors
/// When it cannot start, or can no longer tell what it does.
pub fn run(options: ServiceOptions) -> Result<(), Error> {
    let ServiceOptions { loaded, evidence, per_entry, output } = options;
    // Before the socket is there: whoever asks the service finds a place for holds.
    if let Err(error) = Stores::of(&loaded.config.service.holds()).prepare() {
        tracing::warn!("{}", chain(&error));
    }
    let (claim, listener) = socket::Claim::take(&loaded.config.service.socket)?;
    let (waker, waked) = UnixStream::pair().map_err(system("make a pair of sockets"))?;
    for end in [&waker, &waked] {
        end.set_nonblocking(true).map_err(system("make a pair of sockets"))?;
    }
    let (sender, inbox) = mpsc::channel();
    let (events, told) = channel::unbounded_channel();
    let (done, ended) = oneshot::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let handle = Handle::new(sender, waker);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("start the loop"))?;
    let setup = Setup {
        loaded: loaded.clone(),
        evidence,
        per_entry,
        output,
        inbox,
        waker: waked,
        events,
        stop: Arc::clone(&stop),
    };
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
        // The loop ends after this thread, so somebody is there to hear it.
        let _heard = done.send(worker::run(setup));
    });
    let thread = thread.map_err(system("start a thread"))?;
    let looped = runtime.block_on(async {
        let listener = UnixListener::from_std(listener).map_err(system("listen on the control socket"))?;
        let signals = Signals::take()?;
        let outside = Outside { handle, told, ended, stop, loaded };
        outside.attend(listener, signals).await
    });
    drop(runtime);
    if thread.join().is_err() {
        let source = std::io::Error::other("the engine's thread panicked");
        return Err(ServiceError::System { what: "go on", source }.into());
    }
    drop(claim);
    looped
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn take() -> Result<Self, ServiceError> {
        let take = |kind| signal(kind).map_err(system("take signals"));
        Ok(Self {
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
            reload: take(SignalKind::hangup())?,
        })
    }
}

struct Outside {
    handle: Handle,
    told: channel::UnboundedReceiver<Event>,
    ended: oneshot::Receiver<Result<(), Error>>,
    stop: Arc<AtomicBool>,
    loaded: Loaded,
}

impl Outside {
    async fn attend(mut self, listener: UnixListener, mut signals: Signals) -> Result<(), Error> {
        let mut every = self.loaded.config.service.every;
        let mut ticks = schedule(every, Instant::now());
        let connections = tokio::spawn(socket::listen(listener, self.handle.clone()));
        let metrics = match self.loaded.config.service.metrics {
            Some(address) => match serve_metrics(address, self.handle.clone()).await {
                Ok(task) => Some(task),
                Err(error) => {
                    self.end();
                    let _worker = (&mut self.ended).await;
                    return Err(error.into());
                }
            },
            None => None,
        };
        let mut waiting_for_reload = None;
        let result = loop {
            tokio::select! {
                ended = &mut self.ended => break ended.unwrap_or(Ok(())),
                event = self.told.recv() => match event {
                    Some(Event::Ready) => {
                        notify("READY=1");
                        tracing::info!("ready; the socket is {}", self.loaded.config.service.socket.display());
                    }
                    Some(Event::Reloaded) => {
                        if let Some(loaded) = waiting_for_reload.take() {
                            self.loaded = loaded;
                        }
                        tracing::info!("the configuration was read again");
                        if self.loaded.config.service.every != every {
                            every = self.loaded.config.service.every;
                            ticks = schedule(every, Instant::now() + every);
                        }
                        notify("READY=1");
                    }
                    // The thread is ending; its last word comes by the other way.
                    None => break (&mut self.ended).await.unwrap_or(Ok(())),
                },
                _ = ticks.tick() => {
                    self.handle.send(Message::Pass(every));
                }
                _ = signals.reload.recv() => {
                    notify("RELOADING=1");
                    if let Some(loaded) = self.read_again() {
                        waiting_for_reload = Some(loaded.clone());
                        self.handle.send(Message::Reload(Box::new(loaded)));
                    } else {
                        notify("READY=1");
                    }
                }
                _ = signals.terminate.recv() => break self.finish(&mut signals).await,
                _ = signals.interrupt.recv() => break self.finish(&mut signals).await,
            }
        };
        connections.abort();
        if let Some(metrics) = metrics {
            metrics.abort();
        }
        result
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.handle.send(Message::Stop);
    }

    /// Lets the thread finish the step in hand. A second signal ends everything at once: a crash loses nothing.
    async fn finish(&mut self, signals: &mut Signals) -> Result<(), Error> {
        notify("STOPPING=1");
        tracing::info!("ending after the step in hand");
        self.end();
        tokio::select! {
            ended = &mut self.ended => ended.unwrap_or(Ok(())),
            _ = signals.terminate.recv() => std::process::exit(i32::from(crate::error::exit::FAILED)),
            _ = signals.interrupt.recv() => std::process::exit(i32::from(crate::error::exit::FAILED)),
        }
    }

    /// Reads the configuration again. A bad one is told, and the old one stays in use.
    fn read_again(&self) -> Option<Loaded> {
        let file: &Path = self.loaded.file.as_deref()?;
        let loaded = Loaded::read(file).map_err(Error::from).and_then(|loaded| {
            if loaded.config.roots.is_empty() && loaded.config.owned.is_empty() {
                let file = file.to_path_buf();
                return Err(crate::config::ConfigError::NoRoots { command: "run", file }.into());
            }
            Ok(loaded)
        });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!("the configuration is refused and the old one stays in use: {}", chain(&error));
                return None;
            }
        };
        for note in &loaded.notes {
            tracing::warn!("{note}");
        }
        let (old, new) = (&self.loaded.config.service, &loaded.config.service);
        if old.socket != new.socket || old.metrics != new.metrics {
            tracing::warn!("service.socket and service.metrics change at the next start only");
        }
        Some(loaded)
    }
}

/// Passes that were missed while one was under way are left out.
fn schedule(every: Duration, first: Instant) -> Interval {
    let mut ticks = interval_at(first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

async fn serve_metrics(address: SocketAddr, handle: Handle) -> Result<tokio::task::JoinHandle<()>, ServiceError> {
    let listener = TcpListener::bind(address).await.map_err(|source| ServiceError::Metrics { address, source })?;
    Ok(tokio::spawn(http::listen(listener, handle)))
}

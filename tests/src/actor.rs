//! A sandbox, as the test sees it: a helper process that does what it is told.

use crate::OrFail as _;
use crate::host::namespace_number;
use crate::process::{helper_program, kill_and_reap};
use crate::protocol::{Answer, Request};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A helper process. It ends when this is dropped, and whoever took its place ends with it.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    pid: i32,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    touched: u32,
}

impl Actor {
    /// Starts a process in the namespaces of this thread.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_command(Command::new(helper_program()).arg("serve"))
    }

    /// Starts a command that ends up serving requests, such as another launcher that was told to run the helper.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    #[must_use]
    pub fn start_command(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail(format_args!("start {command:?}"));
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().or_fail("take the output of a helper"));
        let mut actor = Self { pid: 0, child, requests, answers, touched: 0 };
        actor.pid = actor.answer("start").parse().or_fail("read the pid of a helper");
        actor
    }

    /// The pid of the process that serves now, as this host sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pid of the process that was started, which may be a zombie by now.
    #[must_use]
    pub fn first_pid(&self) -> u32 {
        self.child.id()
    }

    /// The number of the mount namespace of the process that serves now.
    #[track_caller]
    #[must_use]
    pub fn namespace(&self) -> u64 {
        namespace_number(&self.pid.to_string())
    }

    /// The number of the mount namespace of one thread of it.
    #[track_caller]
    #[must_use]
    pub fn namespace_of_thread(&self, thread: i32) -> u64 {
        namespace_number(&format!("{}/task/{thread}", self.pid))
    }

    /// Does something, which may fail.
    ///
    /// # Errors
    /// The text of the helper's error.
    #[track_caller]
    pub fn attempt(&mut self, request: &Request) -> Result<String, String> {
        let mut line = serde_json::to_string(request).or_fail("write a request");
        line.push('\n');
        let pipe = self.requests.as_mut().or_fail("the pipe to a helper");
        pipe.write_all(line.as_bytes()).or_fail(format_args!("send {request:?}"));
        self.read_answer(&format!("{request:?}"))
    }

    /// Does something that must succeed.
    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> String {
        self.attempt(request).or_fail(format_args!("{request:?}"))
    }

    #[track_caller]
    fn read_answer(&mut self, asked: &str) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).or_fail(format_args!("read the answer to {asked}"));
        match serde_json::from_str(&line).or_fail(format_args!("answer to {asked}: {line:?}")) {
            Answer::Done(text) => Ok(text),
            Answer::Failed(text) => Err(text),
        }
    }

    #[track_caller]
    fn answer(&mut self, asked: &str) -> String {
        self.read_answer(asked).or_fail(asked)
    }

    /// Enters a private mount namespace of its own.
    #[track_caller]
    pub fn unshare(&mut self) {
        self.ask(&Request::Unshare);
    }

    /// Binds one path on another.
    #[track_caller]
    pub fn bind(&mut self, source: impl AsRef<Path>, target: impl AsRef<Path>) {
        self.ask(&Request::Bind(source.into(), target.into()));
    }

    /// Unmounts a path.
    #[track_caller]
    pub fn unmount(&mut self, target: impl AsRef<Path>) {
        self.ask(&Request::Unmount(target.into()));
    }

    /// Lets a fresh process take this one's place in its namespace; this one exits.
    #[track_caller]
    pub fn hand_over(&mut self) {
        self.pid = self.ask(&Request::HandOver).parse().or_fail("read a pid");
        self.child.wait().or_fail("wait for the process that handed over");
    }

    /// Lets a thread bind `source` on `target` in a namespace of its own while the leader exits alone: the thread's id.
    #[track_caller]
    pub fn leader_dies(&mut self, source: impl AsRef<Path>, target: impl AsRef<Path>) -> i32 {
        self.ask(&Request::LeaderDies(source.into(), target.into())).parse().or_fail("read a thread id")
    }

    /// Makes and removes a file through a mount of the sandbox, and looks for it in the source meanwhile.
    ///
    /// # Errors
    /// What went wrong: the sandbox does not work any more.
    #[track_caller]
    pub fn works(&mut self, point: impl AsRef<Path>, source: impl AsRef<Path>) -> Result<(), String> {
        self.touched += 1;
        let name = format!("alive-{}", self.touched);
        self.attempt(&Request::Touch(point.as_ref().join(&name).into()))?;
        let seen = source.as_ref().join(&name);
        let found = seen.try_exists().or_fail(format_args!("look for {}", seen.display()));
        self.attempt(&Request::Unlink(point.as_ref().join(&name).into()))?;
        if found { Ok(()) } else { Err(format!("what was written at the mount is not at {}", seen.display())) }
    }

    /// As [`Actor::works`], and fails the test when it does not.
    #[track_caller]
    pub fn still_works(&mut self, point: impl AsRef<Path>, source: impl AsRef<Path>) {
        self.works(point, source).or_fail("the sandbox does not work any more");
    }

    /// Kills the process with SIGKILL and reaps it.
    pub fn kill(mut self) {
        kill_and_reap(&mut self.child);
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.requests.take());
        // The end of the pipe ends whoever serves. Its own pipe ends when the last of its processes has.
        let mut rest = String::new();
        if let Err(error) = self.answers.read_line(&mut rest) {
            eprintln!("a helper did not end in order: {error}");
        }
        kill_and_reap(&mut self.child);
    }
}

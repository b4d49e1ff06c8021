//! The binary in one of the ways that it can come to its evidence.

use crate::process::{patience, wait_until};
use crate::{ConfigFile, Host, Pass, QueryLine, Reclaim, Root, ScanLine, Service, WhoLine};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the evidence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The running service, with its live set.
    Service,
    /// One process for each command, which scans.
    Scan,
    /// One process for each command, with the best evidence there is.
    Command,
    /// As [`Mode::Scan`], on a kernel that can neither list namespaces nor mounts.
    Fallback,
}

/// The binary with a configuration, in one mode.
#[derive(Debug)]
pub struct Subject {
    mode: Mode,
    reclaim: Reclaim,
    service: Option<Service>,
}

impl Subject {
    /// With one root, that of the host, where only what is empty goes.
    #[track_caller]
    #[must_use]
    pub fn start(host: &Host, mode: Mode) -> Self {
        Self::start_with(host, mode, &ConfigFile::write(host, [Root::of(host)]))
    }

    /// With a configuration. In [`Mode::Service`] the first pass is over when this returns.
    #[track_caller]
    #[must_use]
    pub fn start_with(host: &Host, mode: Mode, config: &ConfigFile) -> Self {
        Self::start_reclaim(host, mode, config, Reclaim::with(config))
    }

    /// As [`Subject::start`], on a kernel that lacks what a list names, as in `RECLAIM_TEST_DISABLE`.
    #[track_caller]
    #[must_use]
    pub fn start_without(host: &Host, mode: Mode, lacking: &str) -> Self {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", lacking).within(Duration::from_secs(240));
        Self::start_reclaim(host, mode, &config, reclaim)
    }

    #[track_caller]
    fn start_reclaim(host: &Host, mode: Mode, config: &ConfigFile, reclaim: Reclaim) -> Self {
        let reclaim = match mode {
            Mode::Service | Mode::Command => reclaim,
            Mode::Scan => reclaim.evidence("scan"),
            Mode::Fallback => reclaim.evidence("scan").variable("RECLAIM_TEST_DISABLE", "listmount,nslist"),
        };
        let service = (mode == Mode::Service).then(|| {
            let mut service = Service::start(host, config, &reclaim);
            service.wait_for_passes(1);
            service
        });
        Self { mode, reclaim, service }
    }

    /// How the binary is called.
    #[must_use]
    pub fn reclaim(&self) -> &Reclaim {
        &self.reclaim
    }

    /// The service, where there is one.
    pub fn service(&mut self) -> Option<&mut Service> {
        self.service.as_mut()
    }

    /// One pass over the only root.
    #[track_caller]
    pub fn sweep(&self) -> Pass {
        let mut passes = self.reclaim.sweep();
        assert_eq!(passes.len(), 1, "one root, one summary: {passes:?}");
        passes.remove(0)
    }

    /// The decision for one path.
    #[track_caller]
    pub fn query(&self, path: &Path) -> QueryLine {
        self.reclaim.query(path)
    }

    /// Who pins a path.
    #[track_caller]
    pub fn who(&self, path: &Path) -> WhoLine {
        self.reclaim.who(path)
    }

    /// One scan.
    #[track_caller]
    pub fn scan(&self) -> ScanLine {
        self.reclaim.scan()
    }

    /// Fails the test unless a path is pinned, at once.
    #[track_caller]
    pub fn expect_pinned(&self, path: &Path) {
        let answer = self.query(path);
        assert_eq!(answer.verdict, "pinned", "{answer:?}");
    }

    /// Waits until a path is free. Evidence may be too weak for a moment on a busy host; where it is always weaker
    /// than that, the path must at least not be pinned.
    #[track_caller]
    pub fn expect_free(&self, path: &Path) {
        wait_until(&format!("{} to be free", path.display()), Duration::from_secs(30), || {
            let verdict = self.query(path).verdict;
            (verdict == "free" || (self.mode == Mode::Fallback && verdict == "unknown")).then_some(())
        });
    }

    /// Sweeps until some paths have gone, while others must stay through every pass; returns the last summary.
    #[track_caller]
    pub fn sweep_until_gone<G: AsRef<Path>, S: AsRef<Path>>(&self, gone: &[G], stay: &[S]) -> Pass {
        let deadline = Instant::now() + patience(Duration::from_secs(40));
        loop {
            let pass = self.sweep();
            for path in stay.iter().map(AsRef::as_ref) {
                assert!(path.symlink_metadata().is_ok(), "{} is in use and has gone: {pass:?}", path.display());
            }
            let left = gone.iter().map(AsRef::as_ref).find(|path| path.symlink_metadata().is_ok());
            let Some(left) = left else { return pass };
            assert!(Instant::now() < deadline, "{} is still there: {pass:?}", left.display());
            sleep(Duration::from_millis(20));
        }
    }
}

/// Makes one test of a case for each mode that it is listed with.
#[macro_export]
macro_rules! cases {
    ($($case:ident: $($mode:ident),+;)+) => {
        $($crate::cases!(@one $case: $($mode),+);)+
    };
    (@one $case:ident: $($mode:ident),+) => {
        mod $case {
            $($crate::cases!(@mode $case $mode);)+
        }
    };
    (@mode $case:ident service) => {
        #[test]
        fn service() {
            $crate::private_host(|host| super::$case(host, $crate::Mode::Service));
        }
    };
    (@mode $case:ident command) => {
        #[test]
        fn command() {
            $crate::private_host(|host| super::$case(host, $crate::Mode::Command));
        }
    };
    (@mode $case:ident scan) => {
        #[test]
        fn scan() {
            $crate::private_host(|host| super::$case(host, $crate::Mode::Scan));
        }
    };
    (@mode $case:ident fallback) => {
        #[test]
        fn fallback() {
            $crate::private_host(|host| super::$case(host, $crate::Mode::Fallback));
        }
    };
}

//! A host of 1,000 namespaces and 4,000 tasks: prints what a scan costs beside reading every task's mountinfo. Times are
//! those of the processor, so that other work on the host counts for little.

use super::support::{Scene, WAYS};
use nix::time::{ClockId, clock_gettime};
use reclaim_user::evidence::procfs::Procfs;
use reclaim_user::evidence::scan::{Reading, Scanner};
use reclaim_user::model::mountinfo::rows;
use std::time::Duration;

fn best(mut run: impl FnMut()) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("it exists"));
    let time = |()| {
        let started = now();
        run();
        now() - started
    };
    [(); 5].map(time).into_iter().min().expect("five runs")
}

fn every_task(procfs: &Procfs) -> usize {
    let mut text = Vec::new();
    let mut mounts = 0;
    for task in procfs.numbers(".").expect("listable") {
        if procfs.read(&format!("{task}/mountinfo"), &mut text).is_ok() {
            for row in rows(&text) {
                std::hint::black_box(row.expect("valid").mount());
                mounts += 1;
            }
        }
    }
    mounts
}

#[test]
#[ignore = "a measurement of a minute, for an optimised build: cargo test --release --test scan -- --ignored --nocapture"]
fn a_thousand_namespaces() {
    let scene = Scene::new();
    let program = "isolate()\nfor j in range(31): os.mkdir(f'{mnt}/{j}')\nr, w = os.pipe()\nos.setpgid(0, 0)\n\
        for i in range(1000):\n    for j in range(31): os.mkdir(f'{root}/{i}-{j}')\n\
        for i in range(1000):\n    if os.fork() == 0:\n        libc.prctl(1, 9)\n        isolate()\n        \
        for j in range(31): bind(f'{root}/{i}-{j}', f'{mnt}/{j}')\n        \
        for k in range(3):\n            if os.fork() == 0:\n                libc.prctl(1, 9)\n                break\n        \
        os.write(w, b'x')\n        while True: time.sleep(1000)\n\
        for n in range(4000): os.read(r, 1)\nprint('ready', flush=True)\ntime.sleep(1000)";
    let _farm = scene.python(program);
    let procfs = Procfs::open().expect("procfs is mounted");
    let baseline = best(|| _ = every_task(&procfs));
    println!("every task: {baseline:?}");
    for way in WAYS {
        let mut scanner = Scanner::new(way);
        let mut counts = Default::default();
        let time = best(|| counts = scanner.scan().expect("it works").accounting);
        println!("{way:?}: {time:?}, {:.2} times quicker; {counts:?}", baseline.as_secs_f64() / time.as_secs_f64());
        let listing = scanner.list_namespaces().expect("it works");
        let list = best(|| _ = scanner.list_namespaces());
        let namespace = listing.namespaces[listing.namespaces.len() / 2];
        let one = best(|| assert!(matches!(scanner.read_namespace(namespace), Ok(Reading::Table(_)))));
        println!("    list: {list:?}, one namespace: {one:?}");
    }
}

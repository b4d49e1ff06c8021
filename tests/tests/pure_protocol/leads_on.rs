//! What a checker of states cannot tell: whether a way out is left. Every state is kept here, with its steps, and ways are
//! followed backwards.
//!
//! stateright knows "always" and "eventually". What is asked here is "from everywhere it is possible", since nothing makes
//! launchers and crashes come to an end.

use crate::protocol::{Protocol, Step};
use crate::world::World;
use stateright::Model as _;
use std::collections::{BTreeSet, HashMap};

/// Every reachable state, and from where it is reached.
pub(crate) struct Graph {
    pub(crate) worlds: Vec<World>,
    /// For each state, those before it; and whether the step was calm.
    before: Vec<Vec<(u32, bool)>>,
    /// Whatever was done.
    pub(crate) functions: BTreeSet<&'static str>,
    pub(crate) steps: usize,
}

impl Graph {
    /// Explores everything. `check` is shown each step.
    pub(crate) fn explore(protocol: &Protocol, check: impl Fn(&World, &Step)) -> Self {
        let worlds = protocol.init_states();
        let mut numbers: HashMap<World, u32> = worlds.iter().copied().zip(0..).collect();
        let mut graph = Self { before: vec![Vec::new()], worlds, functions: BTreeSet::new(), steps: 0 };
        let mut next = 0;
        while let Some(&world) = graph.worlds.get(next) {
            for step in protocol.steps(&world) {
                check(&world, &step);
                graph.functions.insert(step.function);
                let number = *numbers.entry(step.next).or_insert_with(|| {
                    graph.worlds.push(step.next);
                    graph.before.push(Vec::new());
                    graph.worlds.len() as u32 - 1
                });
                graph.before[number as usize].push((next as u32, step.calm));
                graph.steps += 1;
            }
            next += 1;
        }
        graph
    }

    /// The states from which no way leads to a goal. A way leads through states that are `on_way`, by calm steps alone
    /// where that is wanted.
    pub(crate) fn stranded(
        &self,
        calm_only: bool,
        on_way: impl Fn(&World) -> bool,
        goal: impl Fn(&World) -> bool,
    ) -> Vec<&World> {
        let mut leads: Vec<bool> = self.worlds.iter().map(|world| on_way(world) && goal(world)).collect();
        let mut open: Vec<usize> = (0..leads.len()).filter(|number| leads[*number]).collect();
        while let Some(number) = open.pop() {
            for &(before, calm) in &self.before[number] {
                let before = before as usize;
                if !leads[before] && (calm || !calm_only) && on_way(&self.worlds[before]) {
                    leads[before] = true;
                    open.push(before);
                }
            }
        }
        let left = self.worlds.iter().zip(&leads);
        left.filter(|(world, leads)| !**leads && on_way(world)).map(|(world, _)| world).collect()
    }
}

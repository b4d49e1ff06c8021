//! Steps of launchers. A mount call is taken apart, so that everything else can happen between any two of its parts.

use crate::protocol::{Opening, Protocol, Step, Way, Who};
use crate::world::{Call, Entered, Launcher, Name, Phase, World};

/// The name that launchers use.
const NAME: Name = 0;

impl Protocol {
    pub(crate) fn launcher_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for (index, way) in self.launchers.iter().enumerate() {
            let who = Who::Launcher(index);
            let Launcher { made, opening, descriptor, call, pin } = world.launchers[index];
            // A launcher as it is after a step, in an otherwise unchanged world.
            let with = |change: &dyn Fn(&mut Launcher)| {
                let mut next = *world;
                change(&mut next.launchers[index]);
                next
            };
            if let Some(call) = call {
                self.call_steps(world, index, call, steps);
            } else if let Some(object) = opening {
                let next = with(&|launcher| {
                    launcher.opening = None;
                    launcher.descriptor = Some(object);
                });
                steps.push(Step::calm(who, "open: into the table", Some(object), next));
            } else if pin.is_some() {
                let mut next = with(&|launcher| {
                    launcher.pin = None;
                    launcher.made = launcher.descriptor.is_some();
                });
                if !self.silent_ends {
                    self.stir(&mut next);
                }
                steps.push(Step::wild(who, "umount", pin, next));
                if self.reopening && descriptor.is_none() {
                    steps.push(Step::wild(who, "open through the mount", pin, with(&|own| own.descriptor = pin)));
                }
            } else if !made {
                let mut next = with(&|launcher| launcher.made = true);
                if next.at(NAME).is_some() || next.make(NAME, self.entries).is_some() {
                    steps.push(Step::wild(who, "mkdir", next.at(NAME), next));
                }
            } else if *way == Way::Path || descriptor.is_some() {
                // Reading the generation is the first thing that a program does, and counting the call in another one.
                let read = |reclaimer: usize| match world.reclaimers[reclaimer].phase {
                    Phase::Off => Entered::Before,
                    _ => Entered::Reading(world.reclaimers[reclaimer].generation),
                };
                let call = Call { entered: [read(0), read(1)], counted: false, resolved: None, attached: false };
                steps.push(Step::wild(who, "mount: enter", None, with(&|launcher| launcher.call = Some(call))));
            } else {
                let found = world.at(NAME);
                let next = with(&|launcher| match (found, self.opening) {
                    (None, _) => *launcher = Launcher::default(),
                    (found, Opening::AtOnce) => launcher.descriptor = found,
                    (found, Opening::InTwoSteps) => launcher.opening = found,
                });
                steps.push(Step::wild(who, "open: look the path up", found, next));
            }
            if descriptor.is_some() && call.is_none() {
                let next = with(&|launcher| {
                    launcher.descriptor = None;
                    launcher.made &= launcher.pin.is_some();
                });
                steps.push(Step::wild(who, "close", descriptor, next));
            }
            if world.launchers[index] != Launcher::default() {
                // Its mount namespace goes with it, and its exit takes it off the clock.
                steps.push(Step::wild(who, "SIGKILL", None, with(&|launcher| *launcher = Launcher::default())));
            }
        }
    }

    fn call_steps(&self, world: &World, index: usize, call: Call, steps: &mut Vec<Step>) {
        let who = Who::Launcher(index);
        let mut next = *world;
        let launcher = &mut next.launchers[index];
        let (function, about) = if !call.counted {
            let under = |entered| match entered {
                Entered::Reading(generation) => Entered::Under(generation),
                entered => entered,
            };
            launcher.call = Some(Call { counted: true, entered: call.entered.map(under), ..call });
            self.stir(&mut next);
            ("mount: counted in", None)
        } else if call.attached {
            launcher.call = None;
            ("mount: leave", None)
        } else if let Some(object) = call.resolved {
            launcher.pin = Some(object);
            launcher.call = Some(Call { attached: true, ..call });
            ("mount: attach", Some(object))
        } else {
            let found = launcher.descriptor.or(world.at(NAME));
            match found {
                Some(_) => launcher.call = Some(Call { resolved: found, ..call }),
                // There is nothing to mount; it begins anew.
                None => *launcher = Launcher::default(),
            }
            ("mount: look the source up", found)
        };
        steps.push(Step::calm(who, function, about, next));
    }

    /// Tells reclaimers that look at evidence of a mount call.
    fn stir(&self, world: &mut World) {
        for reclaimer in &mut world.reclaimers {
            reclaimer.stirred |= self.until_still && matches!(reclaimer.phase, Phase::Look(_));
        }
    }
}

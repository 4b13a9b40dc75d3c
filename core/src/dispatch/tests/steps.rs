//! Any steps in any order, against the model.

use proptest::prelude::*;

use super::model::Bounds;
use super::*;

/// Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Submit { queue: usize, kind: usize, priority: i32, keys: Vec<(usize, u32, bool)>, shape: Shape },
    HandOut { worker: usize },
    End { held: usize, how: How },
    Due { delayed: usize },
    Cancel { job: usize },
    Pause { queue: usize },
    Resume { queue: usize },
    Join { queues: u8, kinds: u8, slots: u32 },
    Leave { worker: usize },
    Wait { seconds: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Single,
    Delayed,
    /// The second workflow waits for the first.
    Chain,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let any = || 0..64_usize;
    let priority = prop_oneof![8 => Just(0), 3 => Just(1), 2 => Just(-5), 1 => -100..=100];
    let shape = prop_oneof![6 => Just(Shape::Single), 1 => Just(Shape::Delayed), 1 => Just(Shape::Chain)];
    let keys = prop::collection::vec((0..KEYS.len(), 1..=3_u32, prop::bool::weighted(0.3)), 0..=3);
    let how = prop_oneof![4 => Just(How::Succeed), 3 => Just(How::Requeue), 1 => Just(How::Backoff)];
    let submit = (any(), any(), priority, keys, shape).prop_map(|(queue, kind, priority, keys, shape)| Op::Submit {
        queue,
        kind,
        priority,
        keys,
        shape,
    });
    let op = prop_oneof![
        12 => submit,
        9 => any().prop_map(|worker| Op::HandOut { worker }),
        7 => (any(), how).prop_map(|(held, how)| Op::End { held, how }),
        2 => any().prop_map(|delayed| Op::Due { delayed }),
        2 => any().prop_map(|job| Op::Cancel { job }),
        1 => any().prop_map(|queue| Op::Pause { queue }),
        2 => any().prop_map(|queue| Op::Resume { queue }),
        1 => (1..8_u8, 1..4_u8, 1..=2_u32).prop_map(|(queues, kinds, slots)| Op::Join { queues, kinds, slots }),
        1 => any().prop_map(|worker| Op::Leave { worker }),
        3 => (0..100_u64).prop_map(|seconds| Op::Wait { seconds }),
    ];
    prop::collection::vec(op, 0..200)
}

/// The same on few shelves and with few keys, so that many wait together and for several keys at once.
fn crowded_ops() -> impl Strategy<Value = Vec<Op>> {
    ops().prop_map(|mut ops| {
        for op in &mut ops {
            if let Op::Submit { queue, kind, priority, keys, .. } = op {
                (*queue, *priority) = (0, 0);
                *kind = usize::from(*kind % 8 == 0);
                keys.iter_mut().for_each(|(key, ..)| *key %= 3);
            }
        }
        ops
    })
}

fn nth<T: Copy>(from: &[T], index: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[index % from.len()])
}

impl World {
    /// `serving`: workers that join are offered, and get their work from [`Self::serve`] only.
    fn run(&mut self, op: Op, bounds: Bounds, serving: bool) {
        match op {
            Op::Submit { queue, kind, priority, keys, shape } => {
                let mut limits = BTreeMap::new();
                for (key, max, ordered) in keys {
                    let max = if bounds == Bounds::Mixed { max } else { KEYS[key].1 };
                    let limit = LimitDraft { ordered: ordered && max == 1, ..LimitDraft::new(KEYS[key].0, max) };
                    limits.insert(key, limit);
                }
                let kind = KINDS[kind % KINDS.len()];
                let mut draft = job(QUEUES[queue % QUEUES.len()], kind, priority, &[]);
                draft.limits = limits.into_values().collect();
                match shape {
                    Shape::Single => {}
                    Shape::Delayed => draft.delay = Some(STEP),
                    Shape::Chain => {
                        draft.workflows[0].name = Some("first".into());
                        draft.workflows.push(WorkflowDraft {
                            name: Some("second".into()),
                            kind: kind.into(),
                            after: vec!["first".into()],
                            ..WorkflowDraft::default()
                        });
                    }
                }
                self.submit(draft);
            }
            Op::HandOut { worker } if !serving => {
                let workers: Vec<WorkerKey> = self.workers.keys().copied().collect();
                let Some(worker) = nth(&workers, worker) else { return };
                let Worker { group, ref subscription, .. } = self.workers[&worker];
                if let Some(key) = self.pick_as_the_model_does(group, &subscription.clone(), bounds) {
                    self.hand_out(key);
                    let running = self.running();
                    for limit in self.spec(key).limits.iter() {
                        let (count, smallest) = running[&limit.key];
                        assert!(count <= smallest, "{count} hold {limit:?}, where one allows {smallest}");
                    }
                }
            }
            Op::HandOut { .. } => {}
            Op::End { held, how } => {
                if let Some(key) = nth(&self.find(WorkflowState::is_held), held) {
                    self.end(key, how);
                }
            }
            Op::Due { delayed } => {
                if let Some(key) = nth(&self.find(|state| state == WorkflowState::Delayed), delayed) {
                    self.happen(Event::WorkflowDue(self.reference(key)));
                }
            }
            Op::Cancel { job } => {
                let jobs: Vec<JobId> =
                    self.state.jobs().filter(|(_, job)| !job.cancel_asked).map(|(_, job)| job.id).collect();
                if let Some(job) = nth(&jobs, job) {
                    self.cancel(job);
                }
            }
            Op::Pause { queue } => self.pause(&name(QUEUES[queue % QUEUES.len()]), true),
            Op::Resume { queue } => self.pause(&name(QUEUES[queue % QUEUES.len()]), false),
            Op::Join { queues, kinds, slots } => {
                let chosen = |mask: u8, all: &[&str]| -> Vec<Name> {
                    all.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, text)| name(text)).collect()
                };
                let subscription = Subscription { queues: chosen(queues, &QUEUES), kinds: chosen(kinds, &KINDS) };
                let worker = self.join(subscription, slots);
                if serving {
                    self.freed(Some(worker));
                }
            }
            Op::Leave { worker } => {
                let workers: Vec<WorkerKey> = self.workers.keys().copied().collect();
                if let Some(worker) = nth(&workers, worker) {
                    self.leave(worker);
                }
            }
            Op::Wait { seconds } => self.now = self.now + Duration::from_secs(seconds),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    /// `eager` asks every group after every step, which parks all that can be; otherwise heads pile up unlooked at.
    #[test]
    fn picks_what_a_scan_of_everything_would(ops in prop_oneof![ops(), crowded_ops()], eager in any::<bool>()) {
        let mut world = World::new();
        world.join(subscription(&QUEUES, &KINDS), 1);
        for op in ops {
            world.run(op, Bounds::OnePerKey, false);
            if eager {
                world.compare(Bounds::OnePerKey);
            }
        }
        world.compare(Bounds::OnePerKey);
        world.drain(Bounds::OnePerKey);
    }

    #[test]
    fn mixed_bounds_are_kept_and_nobody_is_forgotten(
        ops in prop_oneof![ops(), crowded_ops()],
        eager in any::<bool>(),
    ) {
        let mut world = World::new();
        world.join(subscription(&QUEUES, &KINDS), 1);
        for op in ops {
            world.run(op, Bounds::Mixed, false);
            if eager {
                world.compare(Bounds::Mixed);
            }
        }
        world.compare(Bounds::Mixed);
        world.drain(Bounds::Mixed);
    }

    /// No wake-up is lost: once all dirty groups were served, no worker with room has anything that it could take.
    #[test]
    fn a_worker_with_room_never_sits_beside_work_for_it(ops in prop_oneof![ops(), crowded_ops()]) {
        let mut world = World::new();
        let first = world.join(subscription(&QUEUES, &KINDS), 2);
        world.freed(Some(first));
        for op in ops {
            world.run(op, Bounds::OnePerKey, true);
            world.serve();
            for (worker, Worker { subscription, slots, .. }) in &world.workers {
                if world.busy(*worker) < *slots {
                    assert_eq!(world.eligible(subscription), [], "worker {worker:?} has room");
                }
            }
        }
        world.drain(Bounds::OnePerKey);
    }
}

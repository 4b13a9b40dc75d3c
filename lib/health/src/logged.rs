//! What is logged while a test does something.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Level, message and fields of every event on this thread, in order.
pub(crate) fn logged(what: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), what);
    let lines = lines.0.lock().expect("nothing panics while it is held");
    lines.clone()
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let (mut message, mut fields) = (String::new(), String::new());
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| match field.name() {
            "message" => message = format!("{value:?}"),
            name => fields += &format!(" {name}={value:?}"),
        });
        let line = format!("{} {message}{fields}", event.metadata().level());
        self.0.lock().expect("nothing panics while it is held").push(line);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

//! Every mailbox is to be had under one name, by a feature.

use onward::mailbox::{Mailbox, Memory, Message, Nats, Redis, Sqs};

fn is_mailbox<M: Mailbox>() -> &'static str {
    std::any::type_name::<M>()
}

#[tokio::test]
async fn features_bring_the_mailboxes_of_brokers() {
    let names = [is_mailbox::<Nats>(), is_mailbox::<Redis>(), is_mailbox::<Sqs>()];
    assert_eq!(names, ["onward_nats::Nats", "onward_redis::Redis", "onward_sqs::Sqs"]);
    let memory = Memory::new();
    memory.send(vec![Message::new("a")]).await.remove(0).unwrap();
    assert_eq!(memory.depth().await.unwrap().waiting, 1);
}

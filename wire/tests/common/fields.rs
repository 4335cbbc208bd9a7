//! Every struct that travels in a body, with the names of its fields in order.

/// Calls `$visit! { Struct { field … } … }` with all of them but `Extension`.
#[macro_export]
macro_rules! with_fields {
    ($visit:ident) => {
        $visit! {
            Limits { frame_bytes record_bytes name_bytes headers_bytes batch_records }
            PartitionPlace { group node shard }
            QueueDescription { queue_id name mode copies lease_ms partitions }
            ConfirmItem { correlation queue_id partition boundary copies generation first_offset count }
            Delivery { offset attempt flags len }
            SettleItem { offset attempt }
            RefusedSettle { offset attempt code }
            LossReport { generation first_lost highest_known_confirmed_next }
            Peeked { offset state attempts len }
            Hello {
                version_min version_max wished_shard window_bytes client authentication extensions
            }
            HelloReply { version node shard shards window_bytes limits server extensions }
            Declare { name mode copies partitions lease_ms extensions }
            Declared { created queue extensions }
            Publish {
                queue_id partition flags deadline_ms producer_id producer_epoch sequence trace count
                records extensions
            }
            Confirm { items extensions }
            Subscribe { queue_id partition subscription credit_records credit_bytes extensions }
            Subscribed { subscription generation extensions }
            Credit { subscription records bytes extensions }
            Deliver { subscription queue_id partition generation deliveries records extensions }
            Settle {
                queue_id partition generation subscription kind flags delay_ms items extensions
            }
            SettleConfirm { accepted boundary copies refused extensions }
            QueueInfo { queue_id partition extensions }
            QueueInfoReply {
                queue partition generation written_next durable_next gated ready delayed leased
                published acknowledged dropped expired dead_lettered purged redelivered
                unsynced_records unsynced_bytes oldest_ready_age_ms consumers latched copies_present
                copies_needed losses extensions
            }
            List { after limit extensions }
            ListReply { queues more extensions }
            Frontiers { queue_id partition extensions }
            FrontiersReply { generation written_next durable_next copies extensions }
            Barrier { queue_id partition deadline_ms extensions }
            BarrierReply { generation written_next durable_next copies extensions }
            Peek { queue_id partition from_offset max_records extensions }
            PeekReply { generation peeked records extensions }
            Purge { queue_id partition extensions }
            Purged { records extensions }
            Delete { queue_id extensions }
            Deleted { queue_id extensions }
            Ping { extensions }
            Pong { extensions }
            GoingAway { reason extensions }
            Error { code outcome message extensions }
            Locate { name extensions }
            LocateReply { queue extensions }
            Redirect { queue_id partition node shard extensions }
            Unsubscribe { subscription extensions }
            Unsubscribed { subscription extensions }
            Extend { queue_id partition generation subscription lease_ms items extensions }
            Extended { accepted refused extensions }
            NodeStatus { node linked }
            ReplicaProgress { peer written durable }
            GroupStatus {
                group generation role serving answers_at tolerates leader term peer last committed
                applied durable voters learners others
            }
            RecoveryStatus { group generation accepts_loss missing answered waits_for }
            ClusterStatus { node shard extensions }
            ClusterStatusReply {
                node shard shards latched draining nodes groups recoveries forgotten extensions
            }
            ClusterOrder { action flags node group generation extensions }
            ClusterOrdered { changed message extensions }
            ChangeQueue { queue_id mode copies flags revision extensions }
            QueueChanged { changed revision mode copies extensions }
        }
    };
}

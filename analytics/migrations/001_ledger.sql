-- One table for each type of ledger entry, and one for dead letters (made by `python -m analytics.ddl`).

CREATE TABLE IF NOT EXISTS engine_started (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `version` LowCardinality(String) COMMENT 'Version of the software',
  `snapshot_seq` Int64 COMMENT 'seq of the snapshot it started from, 0 when it read the whole ledger',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'An engine took over the domain.';

CREATE TABLE IF NOT EXISTS node_recorded (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `node` String COMMENT 'Node name',
  `site` LowCardinality(String) COMMENT 'Site the node is at; links join sites',
  `region` LowCardinality(String) COMMENT 'Region, \'\' when unknown',
  `city` LowCardinality(String) COMMENT 'City, \'\' when unknown',
  `data_centre` LowCardinality(String) COMMENT 'Data centre, \'\' when unknown',
  `row` LowCardinality(String) COMMENT 'Row in the data centre, \'\' when unknown',
  `rack` LowCardinality(String) COMMENT 'Rack, \'\' when unknown',
  `cards` Int32 COMMENT 'Accelerator cards in the node, count, 0 to 63',
  `card_model` LowCardinality(String) COMMENT 'Card model as named in the accelerator table, \'\' when the node has no card',
  `card_memory_bytes` Int64 COMMENT 'Device memory of one card, bytes',
  `cpu_milli` Int64 COMMENT 'CPU capacity, 1/1000 of a core',
  `memory_bytes` Int64 COMMENT 'Main memory, bytes',
  `disk_bytes` Int64 COMMENT 'Local disk for jobs, bytes',
  `interconnect` LowCardinality(String) COMMENT 'Card-to-card link inside the node, \'\' when unknown',
  `labels` Array(String) COMMENT 'Labels, each \'key=value\'',
  `owner` LowCardinality(String) COMMENT 'Registered owner the node belongs to, \'\' when unknown',
  `state` LowCardinality(String) COMMENT 'up, silent (missed heartbeats), draining, maintenance or removed',
  `cards_healthy` Int32 COMMENT 'Cards that can run work, count',
  `reason` String COMMENT 'What changed, for people',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_node node TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A node\'s description or state as scheduling uses it from here on.';

CREATE TABLE IF NOT EXISTS link_recorded (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `link` String COMMENT 'Link name',
  `src_site` LowCardinality(String) COMMENT 'Site the link leaves from',
  `dst_site` LowCardinality(String) COMMENT 'Site the link leads to',
  `capacity_gbps` Float64 COMMENT 'Capacity in this direction, Gbit/s',
  `base_latency_ms` Float64 COMMENT 'One-way latency without load, milliseconds; 0 when unknown',
  `cost_usd_per_gb` Float64 COMMENT 'Price of traffic, US dollars for each 10^9 bytes; 0 when free or unknown',
  `state` LowCardinality(String) COMMENT 'up, silent, draining, maintenance or removed',
  `used_gbps` Float64 COMMENT 'Smoothed traffic on the link, Gbit/s',
  `latency_ms` Float64 COMMENT 'Smoothed one-way latency, milliseconds',
  `reason` String COMMENT 'What changed, for people',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_link link TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A link\'s description or state as scheduling uses it from here on.';

CREATE TABLE IF NOT EXISTS job_accepted (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `submitted_at` DateTime64(3, 'UTC') COMMENT 'When the user submitted, milliseconds since 1970-01-01 UTC',
  `user` LowCardinality(String) COMMENT 'Who submitted',
  `queue` LowCardinality(String) COMMENT 'Queue the job waits in',
  `priority` Int32 COMMENT 'Higher goes first',
  `members` Int32 COMMENT 'Members of the gang, count, at least 1; all start together or none',
  `cards_milli` Int64 COMMENT 'Cards of each member, milli-cards: 500 is half a card, 8000 is eight whole ones; above 1000 a multiple of 1000; 0 for work without a card',
  `card_models` Array(String) COMMENT 'Models that may be used, empty for any',
  `card_memory_bytes` Int64 COMMENT 'Least device memory of each card (of the share for a shared card), bytes; 0 for no demand',
  `cpu_milli` Int64 COMMENT 'CPU of each member, 1/1000 of a core',
  `memory_bytes` Int64 COMMENT 'Main memory of each member, bytes',
  `adjacency` LowCardinality(String) COMMENT 'Narrowest topology level that must hold the whole gang: \'\' (any), site, data_centre, rack or node',
  `run_limit_ms` Int64 COMMENT 'Longest run allowed, milliseconds; 0 for no limit',
  `run_estimate_ms` Int64 COMMENT 'Expected run, milliseconds; 0 when unknown',
  `command` Array(String) COMMENT 'Command and arguments to run, empty when the infrastructure knows',
  `labels` Array(String) COMMENT 'Labels, each \'key=value\'',
  `inferred` Array(String) COMMENT 'Names of the fields that the user did not give and that were inferred',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A job was accepted and waits.';

CREATE TABLE IF NOT EXISTS job_refused (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `user` LowCardinality(String) COMMENT 'Who submitted',
  `queue` LowCardinality(String) COMMENT 'Queue asked for',
  `code` LowCardinality(String) COMMENT 'Stable reason code',
  `reason` String COMMENT 'What was wrong and what would be right',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A submission was refused; nothing else changed.';

CREATE TABLE IF NOT EXISTS job_pending (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt it waits for, from 1',
  `code` LowCardinality(String) COMMENT 'Stable reason code',
  `reason` String COMMENT 'One sentence with figures',
  `position` Int32 COMMENT 'Place in the line, from 1',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A waiting job\'s reason changed.';

CREATE TABLE IF NOT EXISTS job_placed (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `user` LowCardinality(String) COMMENT 'Who submitted',
  `queue` LowCardinality(String) COMMENT 'Queue it waited in',
  `nodes` Array(String) COMMENT 'Nodes used, in topology order',
  `members_on_node` Array(Int32) COMMENT 'Members on each of those nodes, count',
  `card_masks` Array(Int64) COMMENT 'For each of those nodes: bit i set, card i is used',
  `card_milli` Int32 COMMENT 'Share of each card used, milli-cards',
  `cards_milli_total` Int64 COMMENT 'Cards of the gang together, milli-cards',
  `level` LowCardinality(String) COMMENT 'Smallest topology level that holds the gang: node, rack, row, data_centre, site, region or domain',
  `place` String COMMENT 'Name of that place',
  `waited_ms` Int64 COMMENT 'From submission (or from the end of the attempt before) to this placement, milliseconds',
  `candidates` Int32 COMMENT 'Places of that level that could have held the gang, count',
  `reason` String COMMENT 'Why this one, with figures',
  `due_at` DateTime64(3, 'UTC') COMMENT 'When a missing start receipt becomes a failure, milliseconds since 1970-01-01 UTC',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A whole gang was given its cards.';

CREATE TABLE IF NOT EXISTS job_cancel_requested (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `user` LowCardinality(String) COMMENT 'Who cancelled',
  `reason` String COMMENT 'Why, for people',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A user\'s cancellation was accepted.';

CREATE TABLE IF NOT EXISTS receipt_recorded (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt the receipt is about, from 1',
  `node` String COMMENT 'Node that reports',
  `kind` LowCardinality(String) COMMENT 'started, start_failed, finished, failed or released',
  `exit_code` Int32 COMMENT 'Exit code of the member\'s process, 0 unless kind is failed',
  `reason` String COMMENT 'Why, for people; \'\' when all is well',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  INDEX by_node node TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A node\'s receipt was accepted.';

CREATE TABLE IF NOT EXISTS job_started (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `waited_ms` Int64 COMMENT 'From submission to this start, milliseconds',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'All members of the attempt run.';

CREATE TABLE IF NOT EXISTS job_progressed (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `progress_fraction` Float64 COMMENT 'Share of the work done, 0 to 1',
  `checkpoint` String COMMENT 'Address of the newest checkpoint, \'\' when none',
  `checkpoint_at` DateTime64(3, 'UTC') COMMENT 'When that checkpoint was complete, milliseconds since 1970-01-01 UTC; 0 when none',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A job told how far it is.';

CREATE TABLE IF NOT EXISTS job_interrupted (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `code` LowCardinality(String) COMMENT 'Stable reason code',
  `reason` String COMMENT 'What happened, with names',
  `ran_ms` Int64 COMMENT 'How long the attempt ran, milliseconds',
  `requeued` Bool COMMENT 'True: the job waits for the next attempt',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'An attempt ended without its job\'s end: lost node, failed start, missing receipt. The job waits again unless it ended.';

CREATE TABLE IF NOT EXISTS job_ended (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `user` LowCardinality(String) COMMENT 'Who submitted',
  `queue` LowCardinality(String) COMMENT 'Queue',
  `outcome` LowCardinality(String) COMMENT 'finished, failed or cancelled',
  `reason` String COMMENT 'Why, for people',
  `exit_code` Int32 COMMENT 'Exit code of the first member that failed, else 0',
  `waited_ms` Int64 COMMENT 'From submission to the last start (to the end if it never started), milliseconds',
  `ran_ms` Int64 COMMENT 'Run of the last attempt, milliseconds',
  `cards_milli_total` Int64 COMMENT 'Cards of the gang together, milli-cards',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A job is over.';

CREATE TABLE IF NOT EXISTS capacity_quarantined (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `job` String COMMENT 'Job id',
  `attempt` Int32 COMMENT 'Attempt, from 1',
  `node` String COMMENT 'Node',
  `card_mask` Int64 COMMENT 'Bit i set: card i of the node',
  `card_milli` Int32 COMMENT 'Share of each of those cards, milli-cards',
  `reason` String COMMENT 'Why, for people',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  INDEX by_job job TYPE bloom_filter GRANULARITY 2,
  INDEX by_node node TYPE bloom_filter GRANULARITY 2,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Cards of an ended attempt were not confirmed free in time: they stay taken until the node reports or is registered anew.';

CREATE TABLE IF NOT EXISTS dead_letter (
  `topic` LowCardinality(String) COMMENT 'Topic it came from, without the prefix',
  `partition` Int32 COMMENT 'Partition it came from',
  `offset` Int64 COMMENT 'Offset it came from',
  `at` DateTime64(3, 'UTC') COMMENT 'Event time at the source, milliseconds since 1970-01-01 UTC',
  `stage` LowCardinality(String) COMMENT 'Processor that refused it: observe, decide or land',
  `code` LowCardinality(String) COMMENT 'Stable reason code',
  `reason` String COMMENT 'What was wrong, where, and what would be right',
  `schema_id` Nullable(Int32) COMMENT 'Schema id in the message\'s header, null when there was none',
  `key` Nullable(String) COMMENT 'Key as it came',
  `value` Nullable(String) COMMENT 'Value as it came, null for a tombstone',
  `replays` Int32 COMMENT 'How often this message has been replayed from the dead letters',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  CONSTRAINT whole CHECK _topic = 'dead-letter' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (topic, at, partition, offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'A message that could not be understood or must not be used, whole. Written by every processor to `dead-letter`, key: source topic.';

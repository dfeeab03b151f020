-- What the engine learns of the mix of requests.

CREATE TABLE IF NOT EXISTS mix_learned (
  `domain` LowCardinality(String) COMMENT 'Scheduling domain: one ledger, one writer',
  `seq` Int64 COMMENT 'Dense sequence number in the domain\'s ledger, from 1',
  `at` DateTime64(3, 'UTC') COMMENT 'Time given to the engine, milliseconds since 1970-01-01 UTC; never goes back',
  `source` String COMMENT 'Input that caused the entry as topic/partition@offset, \'\' for the engine\'s own decision',
  `arrivals` Int64 COMMENT 'Jobs accepted until now',
  `fitted_at_arrivals` Int64 COMMENT 'Jobs accepted when card values and stranding were worked out; slot costs and prices are of now',
  `kinds` Int32 COMMENT 'Kinds of requests counted',
  `card_value_micro` Array(Int64) COMMENT 'What a card with 0, 1 … 100 hundredths free is worth to the shares seen, millionths of a card',
  `stranding_cpu_milli` Array(Int64) COMMENT 'Group of demand: CPU that goes with a card, 1/1000 core; at least 1',
  `stranding_memory_bytes` Array(Int64) COMMENT 'Group of demand: main memory that goes with a card, bytes; at least 1',
  `stranding_share_micro` Array(Int64) COMMENT 'Group of demand: its share of the demand for cards, millionths',
  `slot_cards` Array(Int64) COMMENT 'Members of several cards: cards of each',
  `slot_cpu_milli` Array(Int64) COMMENT 'Members of several cards: CPU of each, 1/1000 core',
  `slot_memory_bytes` Array(Int64) COMMENT 'Members of several cards: main memory of each, bytes',
  `slot_card_models` Array(String) COMMENT 'Members of several cards: models they may have, joined by commas, \'\' for all',
  `slot_cost_micro` Array(Int64) COMMENT 'Members of several cards: what one place less for them costs, millionths of a card',
  `price_card_models` Array(String) COMMENT 'Card models of the map',
  `price_micro` Array(Int64) COMMENT 'What a card of each of them costs, millionths of one that is not scarce',
  `_topic` LowCardinality(String) COMMENT 'Topic the row came from, without the prefix',
  `_partition` Int32 COMMENT 'Partition it came from',
  `_offset` Int64 COMMENT 'Offset it came from',
  `_schema_id` Int32 COMMENT 'Schema id in the message header',
  INDEX by_offset _offset TYPE minmax GRANULARITY 1,
  CONSTRAINT whole CHECK _topic = 'ledger' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0
) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY (domain, at, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'What was learned of the mix of requests, by which partly free nodes are told apart from here on.';

-- The ledger as one list: what happened, in order.
CREATE OR REPLACE VIEW ledger AS
SELECT domain, seq, at, 'engine_started' AS entry, '' AS job, '' AS node, version AS told, source FROM engine_started
UNION ALL SELECT domain, seq, at, 'node_recorded', '', node, concat(state, if(reason = '', '', ': '), reason), source FROM node_recorded
UNION ALL SELECT domain, seq, at, 'link_recorded', '', '', concat(link, ' ', state, if(reason = '', '', ': '), reason), source FROM link_recorded
UNION ALL SELECT domain, seq, at, 'job_accepted', job, '', concat('queue ', queue), source FROM job_accepted
UNION ALL SELECT domain, seq, at, 'job_refused', job, '', concat(code, ': ', reason), source FROM job_refused
UNION ALL SELECT domain, seq, at, 'job_pending', job, '', concat(code, ': ', reason), source FROM job_pending
UNION ALL SELECT domain, seq, at, 'job_placed', job, arrayStringConcat(nodes, ' '), reason, source FROM job_placed
UNION ALL SELECT domain, seq, at, 'job_cancel_requested', job, '', reason, source FROM job_cancel_requested
UNION ALL SELECT domain, seq, at, 'receipt_recorded', job, node, concat(kind, if(reason = '', '', ': '), reason), source FROM receipt_recorded
UNION ALL SELECT domain, seq, at, 'job_started', job, '', concat('attempt ', toString(attempt)), source FROM job_started
UNION ALL SELECT domain, seq, at, 'job_progressed', job, '', concat(toString(round(100 * progress_fraction)), ' %'), source FROM job_progressed
UNION ALL SELECT domain, seq, at, 'job_interrupted', job, '', concat(code, ': ', reason), source FROM job_interrupted
UNION ALL SELECT domain, seq, at, 'job_ended', job, '', concat(outcome, if(reason = '', '', ': '), reason), source FROM job_ended
UNION ALL SELECT domain, seq, at, 'capacity_quarantined', job, node, reason, source FROM capacity_quarantined
UNION ALL SELECT domain, seq, at, 'mix_learned', '', '', concat('from ', toString(arrivals), ' jobs of ', toString(kinds), ' kinds'), source FROM mix_learned;

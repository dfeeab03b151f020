"""The contracts of Lockstep: records, topics, codecs, units, the log's protocol. Imports nothing of ours."""

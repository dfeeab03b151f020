"""The work of observe as a Faust agent: decode each sample, compare it with the node's last state, send what changed.

Started by `benchmarks.peers`. State is a plain dictionary, which only helps this peer; so does leaving exactly-once off, which Faust
cannot fence. Prints "<samples> <seconds>" after each thousand samples.
"""

import io
import os
import time

import fastavro
import faust

BOOTSTRAP, SCHEMA = os.environ["PEER_BOOTSTRAP"], os.environ["PEER_SCHEMA"]
schema = fastavro.parse_schema(fastavro.schema.load_schema(SCHEMA))
app = faust.App(
    f"peer-faust-{os.getpid()}", broker=f"kafka://{BOOTSTRAP}", consumer_auto_offset_reset="earliest", value_serializer="raw",
    topic_partitions=4, topic_disable_leader=True, web_enabled=False,
)  # fmt: skip
samples = app.topic("lockstep.resource-telemetry", value_serializer="raw", key_serializer="raw")
changes = app.topic("peer-changes", value_serializer="raw", key_serializer="raw")
states: dict[str, tuple[int, int]] = {}


@app.agent(samples)
async def watch(stream):  # type: ignore[no-untyped-def]
    """One sample after the other, as agents do."""
    seen, begun = 0, 0.0
    async for body in stream:
        begun = begun or time.perf_counter()
        row = fastavro.schemaless_reader(io.BytesIO(body[5:]), schema, None)
        last = states.get(row["node"])
        if last is None or last[0] < row["counter"]:
            states[row["node"]] = (row["counter"], row["cards_healthy"])
            if last is None or last[1] != row["cards_healthy"]:
                await changes.send(key=row["node"].encode(), value=body)
        seen += 1
        if seen % 1_000 == 0:
            os.write(1, f"{seen} {time.perf_counter() - begun}\n".encode())  # Faust takes standard output for its log


if __name__ == "__main__":
    app.main()

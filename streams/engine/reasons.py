"""Reason codes, declared once: why a job waits, was refused, was interrupted, or why a message is poison.

Codes are stable: dashboards and scripts may depend on them. A test holds that each is shown by a scenario under
`tests/engine/scenarios`. Read by docs and tests; nothing here decides.
"""

from typing import Final

PENDING: Final[dict[str, str]] = {
    "no_nodes": "No node is registered.",
    "no_such_model": "No node of the map has a card that the job allows.",
    "too_big_for_any_node": "No node could hold one member, even if it were empty.",
    "larger_than_the_map": "All nodes together could not hold the gang, even if they were empty.",
    "adjacency_too_narrow": "No place of the asked adjacency could hold the gang, even if it were empty.",
    "nodes_away": "Enough nodes exist, but too many of them are silent, draining or in maintenance.",
    "short_of_cards": "Enough cards exist, but not enough are free now.",
    "short_of_cpu": "Cards are free, but not with the CPU that a member needs.",
    "short_of_memory": "Cards are free, but not with the main memory that a member needs.",
    "short_of_cpu_and_memory": "Cards are free with enough CPU or with enough memory, but not with both.",
    "scattered": "Enough is free in all, but not inside one place of the asked adjacency.",
}
INTERRUPTED: Final[dict[str, str]] = {
    "node_lost": "A node that ran the attempt fell silent for too long, or was removed.",
    "start_failed": "A node could not start its members.",
    "start_overdue": "A node did not answer the start command in time.",
    "run_limit": "The job ran longer than its limit. It is not tried again.",
}
# The reason of a `JobEnded` with outcome failed begins with its code.
FAILED: Final[dict[str, str]] = {
    "member_failed": "A member ended with an error.",
    "run_limit": "The job ran longer than its limit.",
    "too_many_attempts": "The job failed to start, or lost its nodes, too often.",
}
REFUSED: Final[dict[str, str]] = {
    "job_exists": "Another job has this id; the one that exists is unchanged.",
    "bad_gang": "A gang has at least one member and at most 100,000.",
    "bad_cards": "Cards of a member are 0, a share below 1000 milli-cards, or whole cards (multiples of 1000) up to 63.",
    "bad_adjacency": "Adjacency is '', node, rack, row, data_centre, site, city or region.",
    "bad_amount": "CPU, memory and times are not negative, and below what any machine has (2^50; 100 years).",
}
POISON: Final[dict[str, str]] = {
    "from_the_future": "The event's time is more than a day ahead of the clock.",
    "before_1970": "The event's time is negative: before 1970.",
    "impossible_value": "A field has a value that cannot be.",
    "wrong_record": "The record does not belong on this topic.",
}

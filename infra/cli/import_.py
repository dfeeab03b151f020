"""`lockstep import slurm|kubernetes|openb FILE`: nodes and jobs of other schedulers, as events. Wired in by `infra.cli`.

Parses, shows, and appends to the log; what the file means is the sources' work (`connectors.sources`).
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from connectors.sources.found import Found, Remark, Setting
from connectors.sources.importing import Tool, read_file
from infra.cli._common import GIBIBYTE, Data, count_of, say, settings_of, table, told
from infra.cli._common import as_json as print_json
from infra.wire import now_ms
from infra.wiring import append, open_log, use_registry
from schemas.codec import encode
from schemas.messages import Record

app = typer.Typer(no_args_is_help=True, help="Take over nodes and jobs from another scheduler.")
FLUSH_MS = 30_000


def register(root: typer.Typer) -> None:
    """Add these commands."""
    root.add_typer(app, name="import")


# Rows and remarks shown one by one; the rest is counted.
SHOWN = 10

File = Annotated[Path, typer.Argument(help="What the other scheduler's command printed; - for standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be taken over.")]
Json = Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")]
Site = Annotated[str, typer.Option(help="Site of the nodes, where the file does not say.")]
Domain = Annotated[str, typer.Option(help="Scheduling domain; else the one of the settings.", show_default=False)]
Ended = Annotated[bool, typer.Option("--ended", help="Take work that is over, too.")]


@app.command()
def slurm(
    file: File, data: Data = None, dry_run: DryRun = False, as_json: Json = False, site: Site = "", domain: Domain = "", ended: Ended = False
) -> None:  # fmt: skip
    """sinfo/squeue --json, slurmrestd, scontrol show node|job, sacct --parsable2."""
    _take("slurm", file, data, domain, site, dry_run=dry_run, as_json=as_json, ended=ended)


@app.command()
def kubernetes(
    file: File, data: Data = None, dry_run: DryRun = False, as_json: Json = False, site: Site = "", domain: Domain = "", ended: Ended = False
) -> None:  # fmt: skip
    """kubectl get … -o json|yaml, and manifests: Nodes, Pods, Jobs, gangs, Volcano, JobSet, PyTorchJob, DRA."""
    _take("kubernetes", file, data, domain, site, dry_run=dry_run, as_json=as_json, ended=ended)


@app.command()
def openb(
    file: File, data: Data = None, dry_run: DryRun = False, as_json: Json = False, site: Site = "", domain: Domain = "", ended: Ended = False
) -> None:  # fmt: skip
    """The openb trace's node list or pod list (CSV, also gzip)."""
    _take("openb", file, data, domain, site, dry_run=dry_run, as_json=as_json, ended=ended)


def _take(
    tool: Tool, file: Path, data: Path | None, domain: str, site: str, *, dry_run: bool, as_json: bool, ended: bool
) -> None:
    """Exit codes: 0 everything was taken, 1 the log failed, 2 nothing could be taken, 3 some items were left out."""
    with told():
        chosen = settings_of(data).settings
        setting = Setting(domain or chosen.domain, now_ms(), site, ended)
        found = _read(tool, file, setting)
        if not dry_run and (found.nodes or found.jobs):
            use_registry(chosen)
            log = open_log(chosen)
            try:
                append(log, "import", records(found), FLUSH_MS)
            finally:
                log.close()
    left_out = [r for r in found.remarks if not r.used]
    if as_json:
        print_json(as_object(found, dry_run=dry_run))
    else:
        _show(found, dry_run=dry_run)
    if not (found.nodes or found.jobs):
        raise typer.Exit(2)
    if left_out:
        raise typer.Exit(3)


def _read(tool: Tool, file: Path, setting: Setting) -> Found:
    if str(file) != "-":
        return read_file(tool, file, setting)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "standard input"
        path.write_bytes(sys.stdin.buffer.read())
        return read_file(tool, path, setting)


def records(found: Found) -> Iterator[Record]:
    """What was found as events: nodes first, so that the jobs find them."""
    for node in found.nodes:
        yield Record("resources", node.node.encode(), encode(node))
    for job in found.jobs:
        yield Record("jobs", job.job.encode(), encode(job))


def as_object(found: Found, *, dry_run: bool) -> dict[str, object]:
    """The outcome for programs."""
    return {
        "format": found.format,
        "sent": not dry_run and bool(found.nodes or found.jobs),
        "nodes": [n._asdict() for n in found.nodes],
        "jobs": [j._asdict() for j in found.jobs],
        "remarks": [r._asdict() for r in found.remarks],
    }


def _show(found: Found, *, dry_run: bool) -> None:
    if found.nodes:
        nodes = [
            (n.node, n.site, n.cards, n.card_model, f"{n.cpu_milli / 1000:g}", f"{n.memory_bytes / GIBIBYTE:,.0f}", n.admin_state)
            for n in found.nodes[:SHOWN]
        ]  # fmt: skip
        table(("node", "site", "cards", "model", "cores", "GiB", "state"), nodes, ("cards", "cores", "GiB"))
    if found.jobs:
        # Of several models the last is the family that was asked for.
        jobs = [
            (
                j.job, j.user, j.queue, j.members, f"{j.cards_milli / 1000:g}", j.card_models[-1] if j.card_models else "any",
                f"{j.cpu_milli / 1000:g}", f"{j.memory_bytes / GIBIBYTE:,.1f}",
            )
            for j in found.jobs[:SHOWN]
        ]  # fmt: skip
        right = ("members", "cards each", "cores each", "GiB each")
        table(("job", "user", "queue", "members", "cards each", "models", "cores each", "GiB each"), jobs, right)
    rest = max(0, len(found.nodes) - SHOWN) + max(0, len(found.jobs) - SHOWN)
    if rest:
        say(f"… and {rest:,} more")
    _show_remarks([r for r in found.remarks if not r.used], "left out", "yellow")
    _show_remarks([r for r in found.remarks if r.used], "taken, but", "dim")
    verb = "would be taken" if dry_run else "taken"
    say(f"{found.format}: {count_of(len(found.nodes), 'node')} and {count_of(len(found.jobs), 'job')} {verb}.")


def _show_remarks(remarks: list[Remark], word: str, style: str) -> None:
    """One line for each; what is said of many items is said once, with where it began."""
    count = Counter(r.reason for r in remarks)
    first = {r.reason: r.where for r in reversed(remarks)}
    for reason, n in list(count.items())[:SHOWN]:
        also = f" (and {n - 1:,} more)" if n > 1 else ""
        say(f"{word}: {first[reason]}{also}: {reason}", style)
    if len(count) > SHOWN:
        say(f"… and {len(count) - SHOWN:,} other reasons; --json has them all", style)

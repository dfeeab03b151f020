"""What a run says of itself before its first test."""

from tests.support.clickhouse_container import image, wanted


def pytest_report_header() -> str:
    try:
        killed = f"a server in a container ({image()})" if wanted() else "chDB behind its HTTP front"
    except RuntimeError as e:
        killed = str(e)
    return f"ClickHouse that tests kill: {killed}"

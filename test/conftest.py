"""What every test process sets before anything imports rclpy: its own ROS domain, log folder and profiles."""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from edgellm_ros.resources import resource_path

DOMAINS = 101  # 1 to 101: the ports of higher domains lie in the range that Linux hands out to clients
# what a complete environment may lack: parts of ROS that no wheel carries, and peers to compare with
IN_NO_WHEEL = {"ament_xmllint", "launch", "launch_ros", "launch_testing", "llama_cpp", "torch"}
GRAPH_REFUSED = (
    r"does not load in (the CUDA provider of )?onnxruntime 1\.(23|99)|"
    r"onnxruntime_pybind11_state\.(Fail|InvalidGraph|NotImplemented)"
)

_held_locks: list[IO[str]] = []
_domains_tried = itertools.count(os.getpid())
_log_folder = tempfile.mkdtemp(prefix="edgellm-test-log-")


def _domain_id() -> tuple[int, IO[str]]:
    """A ROS domain that no other test process on this machine holds, and the lock that holds it.

    The first one tried depends on the process, so that a node left over from a killed run is seldom in the way.
    """
    for _ in range(DOMAINS):
        domain = 1 + next(_domains_tried) % DOMAINS
        lock = (Path(tempfile.gettempdir()) / f"edgellm-test-domain-{domain}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return domain, lock
    raise RuntimeError(f"All {DOMAINS} ROS domains for tests are held by other test processes: wait for them to end.")


def _set_ros_environment() -> None:
    # The ament index of an environment made of wheels is its root; a sourced overlay stays in force.
    os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)
    # Never the domain of the shell: tests must not talk to a robot.
    domain, lock = _domain_id()
    _held_locks.append(lock)
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ.pop("ROS_LOCALHOST_ONLY", None)
    if os.environ.get("ROS_DISTRO") == "humble":  # which does not know the variable above
        os.environ["ROS_LOCALHOST_ONLY"] = "1"
    os.environ["ROS_LOG_DIR"] = _log_folder
    profile = str(resource_path("config/fastdds_shared_memory.xml"))
    for variable in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        os.environ.setdefault(variable, profile)


def _register_hypothesis_profiles() -> None:
    if importlib.util.find_spec("hypothesis") is None:
        return  # a robot's test run may do without property tests
    from hypothesis import HealthCheck, settings

    # No deadline: the machine is shared, and a slow example is no failure.
    slow_to_start = [HealthCheck.too_slow]
    settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=slow_to_start)
    settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=slow_to_start)
    settings.load_profile("quick")


def _take_signals() -> None:
    """A shell starts background jobs with interrupts ignored, nohup with hangups: what a test starts inherits that."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_set_ros_environment()
_register_hypothesis_profiles()
_take_signals()


@pytest.fixture(scope="session", autouse=True)
def _release_what_is_held() -> Iterator[None]:
    yield
    shutil.rmtree(_log_folder, ignore_errors=True)
    for lock in _held_locks:
        lock.close()


def _fail_skip_for_missing_package(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where make set everything up, a skip for a missing package hides a missing step, so it counts as a failure."""
    if not report.skipped or not os.environ.get("EDGELLM_COMPLETE_ENVIRONMENT"):
        return
    missing = re.search(r"could not import '([\w.]+)'", str(report.longrepr))
    if missing and missing.group(1).split(".")[0] not in IN_NO_WHEEL:
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} would skip although make set everything up: {missing.group(0)}"


def _skip_for_old_engine_library(report: pytest.TestReport, item: pytest.Item) -> None:
    """Python 3.10 has no onnxruntime that runs today's graphs; that the refusal is clear is all that can be asked."""
    if sys.version_info >= (3, 11) or not report.failed:
        return
    if re.search(GRAPH_REFUSED, report.longreprtext):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: onnxruntime 1.23 does not load this graph")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See ``todays_graphs`` in pytest.ini."""
    if sys.version_info >= (3, 11):
        return
    for item in items:
        if item.get_closest_marker("todays_graphs"):
            item.add_marker(pytest.mark.skip(reason="onnxruntime 1.23 does not load this graph"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    _fail_skip_for_missing_package(report)
    _skip_for_old_engine_library(report, item)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    _fail_skip_for_missing_package(outcome.get_result())


@pytest.fixture
def other_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A ROS domain for the processes that this test starts: what a killed one leaves behind meets no later test."""
    domain, lock = _domain_id()
    with lock:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds setup.py and README.md."""
    return Path(__file__).resolve().parent.parent

"""What of ROS a process finds around it: distribution, middleware, domain."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import EdgeLLMError, MissingPackageError, RefusalCode
from ..resources import resource_path
from .dds_profile import PROFILE_NAME, profile_warning

DISTRIBUTIONS = ("humble", "jazzy", "kilted")
LAST_DOMAIN = 101  # ports of higher ROS domains lie where Linux puts those of clients
_MIDDLEWARE = "RMW_IMPLEMENTATION"
_ANSWER = 30.0  # s for a middleware to load
_HIGHEST_DOMAIN = 232  # whose ports are the last ones there are


@dataclass(frozen=True)
class Surroundings:
    """``distribution`` is as ROS_DISTRO names it, empty for wheels; ``warnings`` are sentences."""

    distribution: str
    rclpy: str
    middleware: str
    domain: int
    warnings: tuple[str, ...]

    @property
    def summary(self) -> str:
        """In one clause."""
        return (
            f"{self.distribution or 'wheels, no ROS_DISTRO'}, rclpy {self.rclpy}, {self.middleware}, "
            f"domain {self.domain}"
        )


def find_surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Look, without starting anything that others could see.

    :raises MissingPackageError: there is no ROS, or a part of it that the node needs is missing.
    :raises EdgeLLMError: a variable of the environment that ROS would not take.
    """
    domain = _domain(environment.get("ROS_DOMAIN_ID", ""))
    _check_middleware(environment)
    try:
        import rclpy

        middleware = str(rclpy.get_rmw_implementation_identifier())
        from . import lifecycle_node  # noqa: F401 (imports every message package of the node)
    except ImportError as error:
        raise MissingPackageError(
            f"The node does not import ({error}); source a ROS 2 installation and install what package.xml names, "
            "with 'rosdep install'."
        ) from None
    except Exception as error:  # of the middleware, which is found when it is first asked for
        raise _no_middleware(environment, str(error)) from None
    distribution = environment.get("ROS_DISTRO", "")
    warnings = [profile_warning(environment, middleware, profile=resource_path(PROFILE_NAME)) or ""]
    if distribution and distribution not in DISTRIBUTIONS:
        warnings.append(
            f"ROS_DISTRO is {distribution}; this package is for {', '.join(DISTRIBUTIONS)}: try it before it moves "
            "anything."
        )
    if domain > LAST_DOMAIN:
        warnings.append(
            f"ROS_DOMAIN_ID is {domain}, whose ports Linux gives to clients too; take one from 0 to {LAST_DOMAIN}."
        )
    return Surroundings(distribution, _version(), middleware, domain, tuple(filter(None, warnings)))


def _check_middleware(environment: Mapping[str, str]) -> None:
    """:raises EdgeLLMError: ROS has not the middleware that is asked for; it would end this very process."""
    if not environment.get(_MIDDLEWARE) or "rclpy" in sys.modules or importlib.util.find_spec("rclpy") is None:
        return
    code = "import rclpy; rclpy.get_rmw_implementation_identifier()"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code], env=dict(environment), capture_output=True, text=True, errors="replace",
            timeout=_ANSWER,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _no_middleware(environment, f"it says nothing in {_ANSWER:g} s") from None
    if asked.returncode:
        raise _no_middleware(environment, (asked.stderr.strip().splitlines() or ["it says nothing"])[-1])


def _no_middleware(environment: Mapping[str, str], reason: str) -> EdgeLLMError:
    return EdgeLLMError(
        f"The middleware does not load ({reason.rstrip('.')}); install the one that {_MIDDLEWARE} names "
        f"({environment.get(_MIDDLEWARE, 'not set')}), or unset it.",
        RefusalCode.MISSING_PACKAGE,
    )


def _domain(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and int(text) <= _HIGHEST_DOMAIN):
        raise EdgeLLMError(
            f"ROS_DOMAIN_ID is {text!r}; want a whole number from 0 to {LAST_DOMAIN}.", RefusalCode.BAD_PARAMETER
        )
    return int(text)


def _version() -> str:
    try:
        return importlib.metadata.version("rclpy")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"

"""Package metadata for pip and for colcon (build type ament_python)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

NAME = "edgellm_ros"
HERE = Path(__file__).resolve().parent
SHARED_FOLDERS = ("config", "launch")


def shared_files(folder: str) -> list[str]:
    """Files of one shared folder, relative to this file, without caches."""
    return sorted(
        path.relative_to(HERE).as_posix()
        for path in (HERE / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def data_files() -> list[tuple[str, list[str]]]:
    """What goes under share/: the ament index marker, package.xml, and each shared folder with its sub-folders."""
    entries: dict[str, list[str]] = {
        "share/ament_index/resource_index/packages": [f"resource/{NAME}"],
        f"share/{NAME}": ["package.xml"],
    }
    for folder in SHARED_FOLDERS:
        for name in shared_files(folder):
            entries.setdefault(f"share/{NAME}/{Path(name).parent.as_posix()}", []).append(name)
    return list(entries.items())


class BuildWithSharedFiles(build_py):
    """Copies the shared folders into the package as well, so that every kind of pip install carries them."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        for source, target in self._shared_copies():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        copies = [] if getattr(self, "editable_mode", False) else [str(target) for _, target in self._shared_copies()]
        return [*super().get_outputs(include_bytecode), *copies]

    def _shared_copies(self) -> list[tuple[Path, Path]]:
        package = Path(self.build_lib) / NAME / "share"
        return [(HERE / name, package / name) for folder in SHARED_FOLDERS for name in shared_files(folder)]


version_line = re.search(r'^__version__ = "([^"]+)"$', (HERE / NAME / "__init__.py").read_text("utf-8"), re.MULTILINE)
if version_line is None:
    raise SystemExit(f'{NAME}/__init__.py has no line __version__ = "…"; setup.py takes the version from there.')

setup(
    name=NAME,
    version=version_line.group(1),
    description="Language, vision-language and vision-language-action models on the robot's own computer, for ROS 2",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    author="The edgellm_ros authors",
    maintainer="The edgellm_ros authors",
    maintainer_email="maintainers@edgellm-ros.example",
    license="Apache-2.0",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={
        NAME: ["py.typed"],
        f"{NAME}.backends.cuda": ["*.cu", "*.cuh"],
        f"{NAME}.ros": ["*.yaml"],
        f"{NAME}.tabletop": ["checkpoint/*", "checkpoint/vlm/*"],
    },
    data_files=data_files(),
    cmdclass={"build_py": BuildWithSharedFiles},
    zip_safe=False,
    python_requires=">=3.10",
    install_requires=[
        "numpy>=1.26",
        "onnxruntime>=1.32,<2; python_version >= '3.11'",
        "onnxruntime>=1.23.2,<1.24; python_version < '3.11'",
        "tokenizers>=0.20,<1",
        "jinja2>=3.1",
        "pyyaml>=6",
        "packaging>=21",
    ],
    extras_require={
        "gpu": ["cuda-python>=12.6"],  # and tensorrt, or onnxruntime-gpu, as the machine has it
        "vision": ["opencv-python-headless>=4.8"],
        "tabletop": ["opencv-python-headless>=4.8"],
        "build": ["onnx>=1.19,<2", "ml_dtypes>=0.5", "safetensors>=0.4", "gguf>=0.17"],
        "openvino": ["openvino>=2026.2"],
        "guided": ["llguidance>=1.9,<2"],
        "replay": ["rosbags>=0.11"],
        "test": ["pytest>=8,<9", "pytest-timeout", "pytest-xdist", "hypothesis", "rosbags>=0.11", "psutil"],
        "bench": ["psutil", "transformers>=5,<6"],
    },
    entry_points={
        "console_scripts": [
            "edgellm = edgellm_ros.cli.main:main",
            "edgellm_node = edgellm_ros.ros.node:main",
            "tabletop_world = edgellm_ros.tabletop.world_process:main",
        ],
    },
)

"""Metadata of fairseq_stochattn. ``make`` installs it with the tested versions."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+?)"', (ROOT / "fairseq_stochattn" / "__init__.py").read_text()
).group(1)

# The scripts of data-prep/ are installed inside the package, for stochattn-prepare.
DATA_PREP = {
    "fairseq_stochattn.data_prep": "data-prep",
    "fairseq_stochattn.data_prep.steps": "data-prep/steps",
    "fairseq_stochattn.data_prep.numbers_corpus": "data-prep/numbers_corpus",
}

setup(
    name="fairseq_stochattn",
    version=VERSION,
    description="Stochastic and regularised attention for sequence models: fairseq and torch",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=[*find_packages(include=["fairseq_stochattn", "fairseq_stochattn.*"]), *DATA_PREP],
    package_dir=DATA_PREP,
    package_data={"fairseq_stochattn.analysis": ["page.css"]},
    python_requires=">=3.10",
    install_requires=[
        # Weights-only loading with an allow-list is the default from torch 2.6 on.
        "torch>=2.6",
        "numpy>=1.26",
        "tqdm>=4.64",
    ],
    extras_require={
        # The plugin and the commands. fairseq is compiled on installation, so it is not required.
        "fairseq": [
            # The same fairseq under two names: the original does not import on Python 3.11.
            "fairseq-fixed>=0.12.3.1; python_version >= '3.11'",
            "fairseq==0.12.2; python_version < '3.11'",
            "sentencepiece>=0.2",
            "sacrebleu>=2.4",
            "tensorboard>=2.12",
        ],
        "data": [
            "sentencepiece>=0.2",
            "sacremoses>=0.1",
            "subword-nmt>=0.3.8",
            "tokenizers>=0.20",
            "syntok>=1.4.4",
            "scipy>=1.11",
        ],
        "paws": ["nltk>=3.8"],
        "analysis": ["scipy>=1.11", "scikit-learn>=1.3", "matplotlib>=3.8"],
        "pretrained": ["safetensors>=0.4", "tokenizers>=0.20"],
        # easy-vqa is a corpus: it has no code that is used, and no dependencies.
        "vision": ["easy-vqa>=1.0", "pillow>=10"],
        "text": ["nltk>=3.9"],  # METEOR of stochattn-score-text
        "huggingface": ["transformers>=5.0,<6", "accelerate>=1.1", "safetensors>=0.4"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26"],
        "dev": [
            *("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "ruff>=0.6"),
            *("POT>=0.9.4", "transformers>=4.40", "pillow>=10"),
        ],
    },
    entry_points={
        "console_scripts": [
            f"stochattn-{name} = fairseq_stochattn.commands.{module}:main"
            for name, module in {
                "attack": "attack",
                "evaluate": "evaluate",
                "export": "export",
                "generate": "generate",
                "heads": "heads",
                "import": "import_model",
                "methods": "methods",
                "plot": "plot",
                "predict": "predict",
                "prepare": "prepare",
                "report": "report",
                "score-text": "score_text",
            }.items()
        ],
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3.11",
        # Tried with the Python API, without fairseq.
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    zip_safe=False,
)

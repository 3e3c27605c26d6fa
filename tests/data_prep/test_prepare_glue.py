"""Fine-tuning data: GLUE's file formats, real files, and training on the output."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from fairseq.data import data_utils

import labelled
import prepare_clinc150
import prepare_glue
import prepare_hellaswag
import prepare_wnut17
import runner
import sizes

SHARED = runner.ROOT.parent / "shared" / "data"
WORDS = ("--subwords", "none")
HEADERS = {
    "SST-2": "sentence\tlabel\n",
    "MRPC": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\ts1\ts2\tsentence1\tsentence2\tscore\n",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
    "MNLI": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n",
    "QNLI": "index\tquestion\tsentence\tlabel\n",
    "RTE": "index\tsentence1\tsentence2\tlabel\n",
    "WNLI": "index\tsentence1\tsentence2\tlabel\n",
    "CoLA": "",
}
# By task: the training table after its header, and the expected rows of the data.
TABLES = {
    "CoLA": (
        'gj\t1\t\t"We won\'t .\ngj\t0\t*\tHim "left" .\n',
        [("\"We won't .", "1"), ('Him "left" .', "0")],
    ),
    "SST-2": ("hide it \t0\nso good \t1\n", [("hide it", "0"), ("so good", "1")]),
    "MRPC": ('1\t7\t8\tHe said " no\tNo\n', [('He said " no', "No", "1")]),
    "STS-B": (
        "0\tg\tf\ty\t1\tnone\tnone\tA man\tA dog\t3.800\n1\tg\tf\ty\t1\tn\tn\tA\tA\t5.0\n",
        [("A man", "A dog", "0.76"), ("A", "A", "1")],
    ),
    "QQP": (
        '1\t2\t3\t"What is it?\tWhat"\t1\n4\t5\t6\tA question\nthat goes on\t0\n'
        '7\t8\t9\tWhy "?\tWho?\t0\n',
        [('"What is it?', 'What"', "1"), ('Why "?', "Who?", "0")],
    ),
    "MNLI": ("0\tp\tA man\tNo man\tx\tcontradiction\n", [("A man", "No man", "contradiction")]),
    "QNLI": ("0\tWho?\tA man\tentailment\n", [("Who?", "A man", "entailment")]),
    "RTE": ("0\tA man\tNo man\tnot_entailment\n", [("A man", "No man", "not_entailment")]),
    "WNLI": ("0\tA man\tHe is\t1\n", [("A man", "He is", "1")]),
}
UNLABELLED = {
    "CoLA": ("index\tsentence\n0\tHim .\n", [("Him .", None)]),
    "SST-2": ("index\tsentence\n0\tso good \n", [("so good", None)]),
    "QQP": ('id\tquestion1\tquestion2\n0\tWho?\tWhat"\n', [("Who?", 'What"', None)]),
    "STS-B": (
        "g\tf\ty\t1\t2.5\tA man\tA\n" * 2 + "g\tf\ty\t1\t0\tA\tA dog\tCC\tBY\n",
        [("A man", "A", "0.5"), ("A man", "A", "0.5"), ("A", "A dog", "0")],
    ),
}


def glue(task: str, folder: Path, packed: bool = False) -> Path:
    whole = HEADERS[task] + TABLES[task][0]
    held_out = ("dev_matched", "dev_mismatched") if task == "MNLI" else ("dev",)
    files = {f"{task}/{name}.tsv": whole for name in ("train", *held_out)}
    if task == "MNLI":
        files["MNLI/dev_mismatched.tsv"] = whole.replace("contradiction", "neutral")
    if task in UNLABELLED:
        files[f"{task}/test.tsv"] = UNLABELLED[task][0]
    return labelled.write(folder, {prepare_glue.TASKS[task].archive: files} if packed else files)


@pytest.mark.parametrize("task", TABLES)
def test_tiny_glue(task: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    origin = glue(task, tmp_path / "from")
    assert labelled.run(prepare_glue, origin, out, "--task", task, *WORDS) == 0
    known = {word for row in TABLES[task][1] for text in row[:-1] for word in text.split()}
    assert known  # every word of the training table is in the dictionary, so rows are exact
    if task == "MNLI":
        assert labelled.rows(out, "valid1") == [("A man", "No man", "neutral")]
    for split in ("train", "valid"):
        assert labelled.rows(out, split) == TABLES[task][1]
    if task in UNLABELLED:
        found = labelled.rows(out, "test")
        assert [(row[-1], len(row)) for row in found] == [
            (r[-1], len(r)) for r in UNLABELLED[task][1]
        ]
        assert {w for row in found for text in row[:-1] for w in text.split()} <= {*known, "<unk>"}
    assert (out / "input0" / "test.bin").exists() == (task in UNLABELLED)
    stats = json.loads((out / "manifest.json").read_text())["splits"]
    assert stats["train"]["dropped"] == ({"wrong number of columns": 2} if task == "QQP" else {})
    assert stats["valid"]["seen_in_train"] == len(TABLES[task][1])


def test_glue_from_archives_from_one_folder_and_all_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    origin = tmp_path / "from"
    labelled.write(origin, {"WNLI.zip": {}})
    glue("CoLA", origin, packed=True)
    glue("RTE", origin)
    (origin / "WNLI.zip").unlink()
    assert labelled.run(prepare_glue, origin, tmp_path / "all", "--task", "all", *WORDS) == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["CoLA", "RTE"]
    assert "QQP: skipped, not in" in capsys.readouterr().out
    assert labelled.rows(tmp_path / "all" / "CoLA", "train") == TABLES["CoLA"][1]
    task = ("--task", "RTE", *WORDS)
    assert labelled.run(prepare_glue, origin / "RTE", tmp_path / "one", *task) == 0
    assert labelled.rows(tmp_path / "one", "train") == TABLES["RTE"][1]
    assert labelled.run(prepare_glue, tmp_path / "one", tmp_path / "no", "--task", "all") == 1
    assert "has neither a folder nor an archive of any GLUE task" in capsys.readouterr().err


def test_mrpc_from_the_files_of_microsoft(tmp_path: Path) -> None:
    rows = "".join(f'1\t{i}\t{i + 50}\tHe said {i}\t" No {i}\n' for i in range(6))
    files = {
        "msr_paraphrase_train.txt": HEADERS["MRPC"] + rows,
        "msr_paraphrase_test.txt": HEADERS["MRPC"] + "0\t9\t9\tHe\tNo\n",
        "mrpc_dev_ids.tsv": "#1 ID\t#2 ID\n2\t52\n5\t55\n1\t55\n",
    }
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    assert labelled.run(prepare_glue, origin, out, "--task", "MRPC", "--keep-text", *WORDS) == 0
    texts = {
        s: (out / "text" / f"{s}.input0").read_text().split("\n")[:-1] for s in ("train", "valid")
    }
    assert texts["train"] == ["He said 0", "He said 1", "He said 3", "He said 4"]
    assert texts["valid"] == ["He said 2", "He said 5"]
    assert labelled.rows(out, "test") == [("He", "No", "0")]


def copy_head(path: Path, target: Path, count: int) -> None:
    """Copy the first lines of a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as file:
        target.write_bytes(b"".join(itertools.islice(file, count)))


@pytest.mark.parametrize("task", ["CoLA", "MRPC", "RTE", "SST-2", "STS-B"])
def test_real_glue(task: str, tmp_path: Path) -> None:
    """The first 300 lines of every file, and all of RTE, the smallest task."""
    folder = SHARED / "glue" / task
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    count = 10**6 if task == "RTE" else 300
    for path in folder.iterdir():
        copy_head(path, tmp_path / "from" / task / path.name, count)
    out = tmp_path / "out"
    more = ("--task", task, "--subwords", "spm-bpe", "--size", 400, "--keep-text")
    more = (*more, "--max-length", 5000)  # nothing is cut
    assert labelled.run(prepare_glue, tmp_path / "from", out, *more) == 0
    spec = prepare_glue.TASKS[task]
    for split, name in prepare_glue.SPLITS.items():
        source = tmp_path / "from" / task / f"{name}.tsv"
        if not source.exists():
            continue
        # An independent reading of the same file: split at tabs, columns by position in the header.
        lines = source.read_text(encoding="utf-8-sig").split("\n")[:-1]
        header = lines.pop(0).split("\t") if spec.texts[0] in lines[0] else list(spec.names)
        cells = [line.split("\t") for line in lines]
        for i, text in enumerate(spec.texts):
            written = (out / "text" / f"{split}.input{i}").read_text().split("\n")[:-1]
            assert written == [" ".join(row[header.index(text)].split()) for row in cells]
            joined = [
                x.replace(" ", "").replace("▁", " ").strip()
                for x in labelled.decoded(out / f"input{i}", split)
            ]
            known = [pair for pair in zip(joined, written, strict=True) if "<unk>" not in pair[0]]
            # sentencepiece normalises the text with NFKC.
            assert all(a == unicodedata.normalize("NFKC", b) for a, b in known)
            assert len(known) > 0.7 * len(written)
        found = [row[header.index(spec.label)] for row in cells]
        expected = [f"{float(x) / 5:.6g}" for x in found] if task == "STS-B" else found
        assert labelled.labels(out, split) == expected
    if task == "RTE":
        stats = json.loads((out / "manifest.json").read_text())["splits"]
        assert [stats[s]["kept"] for s in ("train", "valid")] == [2490, 277]


def test_real_clinc150(tmp_path: Path) -> None:
    path = SHARED / "clinc150" / "data_full.json"
    if not path.is_file():
        pytest.skip(f"{path} does not exist")
    corpus = {name: rows[::10] for name, rows in json.loads(path.read_text()).items()}
    origin = labelled.write(tmp_path / "from", {path.name: json.dumps(corpus)})
    out = tmp_path / "out"
    assert labelled.run(prepare_clinc150, origin, out, *WORDS) == 0
    assert len(labelled.classes_of(out)) == 150
    assert labelled.rows(out, "train") == [
        (" ".join(text.split()), intent) for text, intent in corpus["train"]
    ]
    assert len(labelled.rows(out, "test_oos")) == 100


def test_real_wnut17(tmp_path: Path) -> None:
    folder = SHARED / "wnut17"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    for remote in prepare_wnut17.REMOTES.values():
        copy_head(folder / remote.name, tmp_path / "from" / remote.name, 4000)
    out = tmp_path / "out"
    assert labelled.run(prepare_wnut17, tmp_path / "from", out, "--size", 500) == 0
    text = (tmp_path / "from" / "wnut17train.conll").read_text()
    blocks = [block.split("\n") for block in text.replace("\n\t\n", "\n\n").strip().split("\n\n")]
    sentences = [[line.split("\t") for line in block if line.strip()] for block in blocks]
    found = labelled.rows(out, "train")
    assert len(found) == len(sentences)
    for (pieces, tags), words in zip(found, sentences, strict=True):
        pairs = list(zip(pieces.split(), tags.split(), strict=True))
        assert [tag for _, tag in pairs if tag != "<ignore>"] == [tag for _, tag in words]
        assert all(piece.startswith("▁") for piece, tag in pairs if tag != "<ignore>")
        assert "".join(x for x, _ in pairs).replace("▁", " ").split() == [word for word, _ in words]


def test_fairseq_finds_no_labels_in_an_unlabelled_split(tmp_path: Path) -> None:
    origin, out = glue("CoLA", tmp_path / "from"), tmp_path / "out"
    assert labelled.run(prepare_glue, origin, out, "--task", "CoLA", *WORDS) == 0
    assert data_utils.load_indexed_dataset(str(out / "label" / "test"), None) is None


def sentences(count: int, label) -> str:
    return "".join(
        f"{i}\tOne word {i % 7} .\tTwo words {i % 5} .\t{label(i)}\n" for i in range(count)
    )


TRAINED: dict[str, tuple[ModuleType, tuple, dict, tuple]] = {
    "classification": (
        prepare_glue,
        ("--task", "RTE"),
        {
            f"RTE/{name}.tsv": "index\tsentence1\tsentence2\tlabel\n"
            + sentences(24, lambda i: ("entailment", "not_entailment")[i % 2])
            for name in ("train", "dev")
        },
        ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", 2),
    ),
    "regression": (
        prepare_glue,
        ("--task", "STS-B"),
        {
            f"STS-B/{name}.tsv": "index\tsentence1\tsentence2\tscore\n"
            + sentences(24, lambda i: f"{i % 6}.000")
            for name in ("train", "dev")
        },
        (
            *("--task", "sentence_prediction", "--criterion", "sentence_prediction"),
            *("--num-classes", 1, "--regression-target"),
        ),
    ),
    "choice": (
        prepare_hellaswag,
        (),
        {
            f"hellaswag_{name}.jsonl": "".join(
                json.dumps({"ctx": "A cat", "endings": list("abcd"), "label": i % 4}) + "\n"
                for i in range(24)
            )
            for name in ("train", "val", "test")
        },
        ("--task", "sentence_ranking", "--criterion", "sentence_ranking", "--num-classes", 4),
    ),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_fairseq_trains_on_the_output(kind: str, tmp_path: Path) -> None:
    script, more, files, task = TRAINED[kind]
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    assert labelled.run(script, origin, out, *more, *WORDS) == 0
    common = ("--arch", "roberta", *sizes.ROBERTA, "--max-positions", 64)
    tokens = ("--init-token", 0, "--separator-token", 2, "--max-update", 2)
    output = runner.train(out, tmp_path / "run", *task, *common, *tokens)
    assert len(output.losses()) == 2
    assert all(0 < loss < 10 for loss in output.losses())

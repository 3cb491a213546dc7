"""Where the data sets come from, and the SHA-256 of what must arrive.

All sums are published: several independent projects (torchvision for Ruby, MLDatasets.jl, GoMLX) agree on
them. Checked here against real copies: the two test files inside the CIFAR archives. The archives themselves
and MNIST's gzipped files were not at hand. ImageNet and the NIPS-2017 images are not listed: the one needs an
account, the other is a list of links to other people's photographs.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Home:
    """One file to fetch; the addresses are tried in turn.

    path: where it goes below the data folder. members: what an archive is unpacked to there, with SHA-256
    of each; the archive itself is then removed.
    """

    path: Path
    urls: tuple[str, ...]
    sha256: str
    members: dict[str, str] = field(default_factory=dict)


def _mnist(name: str, sha256: str) -> Home:
    # The author's page refuses strangers at times; the second is the copy that torchvision uses.
    places = ("https://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
    return Home(path=Path("MNIST", "raw", name), urls=tuple(place + name for place in places), sha256=sha256)


def _cifar(archive: str, sha256: str, subfolder: str, members: dict[str, str]) -> Home:
    return Home(
        path=Path(archive),
        urls=(f"https://www.cs.toronto.edu/~kriz/{archive}",),
        sha256=sha256,
        members={f"{subfolder}/{name}": digest for name, digest in members.items()},
    )


HOMES: dict[str, tuple[Home, ...]] = {
    "mnist": (
        _mnist(
            "train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        _mnist(
            "train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
        ),
        _mnist(
            "t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        _mnist(
            "t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
        ),
    ),
    "cifar10": (
        _cifar(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin",
            {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            },
        ),
    ),
    "cifar100": (
        _cifar(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            "cifar-100-binary",
            {
                "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            },
        ),
    ),
}

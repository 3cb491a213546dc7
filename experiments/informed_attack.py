"""What an attacker who knows the defense leaves of it, on CIFAR-10 with a full-size classifier; to results/.

    python experiments/informed_attack.py --data-dir DIR --weights resnet18-cifar10.safetensors --device cuda

Three figures a defense: natural accuracy, PGD-20 on the bare classifier (ignorant), and PGD with
straight-through gradients averaged over ten draws (eot). All images are attacked; figures are means of fresh
draws.
"""

import argparse
import json
import time
from pathlib import Path

import vqshield as vq
from vqshield.attacks import EOT, PGD, Linf
from vqshield.classifiers import load_classifier
from vqshield.data import load
from vqshield.draws import evaluate
from vqshield.environment import environment

DEFENSES = (
    ("randdisc", {"codes": 25}),
    ("prd", {"size": 2, "codes": 25}),
    ("swrd", {"size": 2, "codes": 15}),
    ("swrd", {"size": 3, "codes": 25}),
    ("swrd", {"size": 3, "codes": 70}),
)
EPS = 8 / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="results/informed-cifar10-resnet18.json")
    options = parser.parse_args()

    test = load("cifar10", "test", options.data_dir).take(options.limit)
    images, labels = test.floats().to(options.device), test.labels.to(options.device)
    classifier = load_classifier(options.weights, device=options.device)
    ignorant = PGD(ball=Linf(EPS), steps=20, seed=options.seed)(classifier, images, labels)
    aware = PGD(ball=Linf(EPS), steps=options.steps, step=EPS / 10, seed=options.seed)
    rows = []
    for name, settings in DEFENSES:
        began = time.perf_counter()
        model = vq.defend(classifier, name, **settings, seed=options.seed)
        attacked = aware(EOT(model, draws=options.draws), images, labels)
        natural = evaluate(model, images, labels, runs=options.runs)
        seconds = round(time.perf_counter() - began, 1)
        for threat, attack, found in (
            ("none", "none", images),
            ("ignorant", "pgd-20", ignorant),
            ("eot", f"pgd-{options.steps} + ste + eot-{options.draws}", attacked),
        ):
            draws = natural if threat == "none" else evaluate(model, found, labels, runs=options.runs)
            row = {"defense": name, "settings": model.defense.settings(), "threat": threat, "attack": attack}
            row |= {"natural": natural.mean, "robust": draws.mean, "std": draws.std, "runs": options.runs}
            rows.append({**row, "n": len(labels), "seconds": seconds})
        figures = ", ".join(f"{row['threat']} {row['robust']:.4f}" for row in rows[-3:])
        print(f"{name} {settings}: {figures} ({seconds} s)", flush=True)
    record = {
        "what": "CIFAR-10 test set, an attacker who ignores the defense and one who knows it",
        "classifier": Path(options.weights).stem,
        "epsilon": EPS,
        "seed": options.seed,
        "environment": environment(options.device),
        "audit": "not run",
        "rows": rows,
    }
    target = Path(options.out)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

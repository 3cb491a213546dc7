"""Natural accuracy of the defenses on the whole CIFAR-10 test set, written to results/.

python experiments/natural_accuracy.py --data-dir DIR --weights resnet18-cifar10.safetensors --device cuda
"""

import argparse
import json
import time
from pathlib import Path

import vqshield as vq
from vqshield.classifiers import load_classifier
from vqshield.data import load
from vqshield.draws import draw_predictions
from vqshield.environment import environment

DEFENSES = {
    "none": None,
    "randdisc": {"codes": 25},
    "prd": {"size": 2, "codes": 25},
    "swrd": {"size": 3, "codes": 25},
    "swrd-70": {"size": 3, "codes": 70},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="results/natural-cifar10-resnet18.json")
    options = parser.parse_args()

    test = load("cifar10", "test", options.data_dir).take(options.limit)
    images, labels = test.floats().to(options.device), test.labels.to(options.device)
    classifier = load_classifier(options.weights, device=options.device)
    rows = []
    for name, settings in DEFENSES.items():
        began = time.perf_counter()
        if settings is None:
            draws, described = draw_predictions(classifier, images, labels, runs=1, batch=2000), {}
        else:
            model = vq.defend(classifier, name.split("-")[0], **settings, seed=options.seed)
            draws, described = (
                draw_predictions(model, images, labels, runs=options.runs, batch=2000),
                model.defense.settings(),
            )
        rows.append(
            {
                "defense": name.split("-")[0],
                "settings": described,
                "threat": "none",
                "natural": draws.mean,
                "std": draws.std,
                "runs": len(draws.predictions),
                "n": len(labels),
                "seconds": round(time.perf_counter() - began, 2),
            }
        )
        print(f"{name:10} {draws.mean:.4f} ± {draws.std:.4f}  {rows[-1]['seconds']} s", flush=True)
    record = {
        "what": "natural accuracy, CIFAR-10 test set",
        "classifier": Path(options.weights).stem,
        "seed": options.seed,
        "environment": environment(options.device),
        "rows": rows,
    }
    target = Path(options.out)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

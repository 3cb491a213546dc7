"""Attack a classifier of ART (Adversarial Robustness Toolbox) through a shield among its defences.

pip install ".[art]" -c constraints.txt
python examples/shield_with_art.py
"""

from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import PyTorchClassifier
from torch import nn

from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield.integrations.art import ShieldPreprocessor

photos = sample(4)
classifier = PyTorchClassifier(
    small_cifar10(),
    loss=nn.CrossEntropyLoss(),
    input_shape=(3, 32, 32),
    nb_classes=10,
    clip_values=(0.0, 1.0),
    preprocessing_defences=[ShieldPreprocessor("swrd:size=3", seed=0, device_type="cpu")],
    device_type="cpu",
)
attack = ProjectedGradientDescent(classifier, eps=8 / 255, eps_step=2 / 255, max_iter=3, verbose=False)
for name, images in {
    "natural": photos.floats().numpy(),
    "attacked": attack.generate(photos.floats().numpy(), y=photos.labels.numpy()),
}.items():
    right = classifier.predict(images).argmax(1) == photos.labels.numpy()
    print(f"{name}: {right.mean():.0%} right")

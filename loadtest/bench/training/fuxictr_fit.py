"""Fit a model of FuxiCTR and tell what the race asks for: the end of each of its sides. Standard library alone."""

# mypy: ignore-errors

import json

SCORED_ROWS = 8192


def fit_and_tell(model, loader, batch_rows, epochs):
    """Write a Run as JSON to stdout: FuxiCTR's own fit, early stopping and AUC.

    Args:
        model: The model.
        loader: loader(part, batch_rows, shuffled) -> batches of a part of the rows.
        batch_rows: Rows of a step.
        epochs: Most epochs.
    """
    choosing, last = (loader(part, SCORED_ROWS, False) for part in ("choosing", "last"))
    model.fit(loader("learned", batch_rows, True), epochs=epochs, validation_data=choosing)
    ran = model._epoch_index + 1 - model._stopping_steps
    aucs = [model.evaluate(part)["AUC"] for part in (choosing, last)]
    print(json.dumps({"auc": aucs[1:], "epochs": ran, "choosing": aucs[0]}))

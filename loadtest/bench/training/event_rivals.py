"""What counting, logistic regression and LightGBM reach on a log of events: run by event_race in a venv that has them.

    python event_rivals.py LOG.npz COLUMN,... HELD_OUT_SHARE

Each is fitted on the first rows and judged on the last ones; a history goes on through both, as for the product. Every
choice (smoothing, penalty, number of trees) is made on the last tenth of the fitted rows. Prints a line of JSON: AUC by
rival.
"""

# mypy: ignore-errors

import json
import sys
import warnings

import numpy as np

HISTORY = 50
SMOOTHINGS = (1.0, 3.0, 10.0, 30.0)
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)


def auc(label, score):
    _, where, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[where]
    ones = label > 0
    n = ones.sum()
    return float((rank[ones].sum() - n * (n + 1) / 2) / (n * (~ones).sum()))


def histories(user, item, category, label):
    """Return by row the last liked item, the one before, and how often the candidate's category and item were liked."""
    last, before = np.full(len(user), -1), np.full(len(user), -1)
    liked, same_item, same_category = np.zeros(len(user)), np.zeros(len(user)), np.zeros(len(user))
    events = {}
    for row, (u, i, c, y) in enumerate(zip(user.tolist(), item.tolist(), category.tolist(), label.tolist())):
        seen = events.setdefault(u, [])
        if seen:
            last[row] = seen[-1][0]
            before[row] = seen[-2][0] if len(seen) > 1 else -1
            newest = seen[-HISTORY:]
            liked[row] = len(newest)
            same_item[row] = sum(e[0] == i for e in newest)
            same_category[row] = sum(e[1] == c for e in newest)
        if y > 0:
            seen.append((i, c))
    return last, before, liked, same_item, same_category


def codes(*columns):
    """Return one code for each combination of values."""
    joined = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, where = np.unique(column, return_inverse=True)
        joined = joined * (where.max() + 1) + where
    return np.unique(joined, return_inverse=True)[1]


def rates(code, label, fitted, smoothing, prior):
    """Return by row the share of ones of its code among the fitted rows before it (all of them behind the last one)."""
    n = len(code)
    order = np.argsort(code, kind="stable")
    sorted_code, known = code[order], (np.arange(n) < fitted)[order]
    ones, rows = np.cumsum(np.where(known, label[order], 0)), np.cumsum(known)
    first = np.r_[True, sorted_code[1:] != sorted_code[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(n), 0))
    ones_before = np.r_[0, ones[:-1]] - np.r_[0, ones][start]
    rows_before = np.r_[0, rows[:-1]] - np.r_[0, rows][start]
    share, count = np.empty(n), np.empty(n)
    share[order] = (ones_before + smoothing * prior[order]) / (rows_before + smoothing)
    count[order] = rows_before
    return share, count


def main(path, names, held_out):
    import lightgbm
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    warnings.simplefilter("ignore")
    log = dict(np.load(path, allow_pickle=False))
    label = log["label"].astype(float)
    n = len(label)
    fitted = n - round(n * held_out)
    chosen = fitted - round(fitted * 0.1)
    user, item, category = log["user_id"], log["item_id"], log["category"]
    hour = log["hour"] if "hour" in names else np.zeros(n, np.int64)
    last, before, liked, same_item, same_category = histories(user, item, category, label)
    of_item = dict(zip(item.tolist(), category.tolist()))
    last_category = np.array([of_item.get(i, -1) for i in last.tolist()])
    keys = {
        "item": (item,), "user": (user,), "category": (category,), "last item": (last, item),
        "last two": (before, item), "last category": (last_category, category),
        **({"hour": (hour, category)} if "hour" in names else {}), "user's category": (user, category),
    }  # fmt: skip
    coded = {name: codes(*columns) for name, columns in keys.items()}
    result = {}

    def counted(fitted, smoothing):
        base = np.full(n, label[:fitted].mean())
        popular, _ = rates(coded["item"], label, fitted, 20.0, base)
        one, _ = rates(coded["last item"], label, fitted, smoothing, popular)
        two, _ = rates(coded["last two"], label, fitted, smoothing, popular)
        return {"popularity": popular, "last item": one, "last two": one * two / (popular + 1e-9)}

    for name in ("popularity", "last item", "last two"):
        best = max(SMOOTHINGS, key=lambda s: auc(label[chosen:fitted], counted(chosen, s)[name][chosen:fitted]))
        result[name] = auc(label[fitted:], counted(fitted, best)[name][fitted:])

    def encoded(fitted):
        base = np.full(n, label[:fitted].mean())
        popular, popular_rows = rates(coded["item"], label, fitted, 10.0, base)
        columns = [popular, np.log1p(popular_rows)]
        for name in coded:
            if name != "item":
                prior = popular if "last" in name else base
                share, count = rates(coded[name], label, fitted, 3.0, prior)
                columns += [share, np.log1p(count)]
        return np.column_stack([*columns, liked, same_item, same_category])

    def onehot(fitted):
        parts = [sparse.csr_matrix((np.ones(n), (np.arange(n), code)), (n, code.max() + 1)) for code in coded.values()]
        numbers = encoded(fitted)
        shares = [i for i in range(numbers.shape[1] - 3) if i % 2 == 0]
        odds = np.log(np.clip(numbers[:, shares], 1e-3, 1 - 1e-3) / np.clip(1 - numbers[:, shares], 1e-3, 1))
        return sparse.hstack([*parts, sparse.csr_matrix(odds), sparse.csr_matrix(np.log1p(numbers[:, -3:]))]).tocsr()

    def fit(rows, penalty, x):
        return LogisticRegression(C=penalty, max_iter=200).fit(x[:rows], label[:rows]).decision_function(x)

    crosses = sum(code.max() + 1 for code in coded.values())
    for name, width in (("logistic regression", None), ("logistic regression, crosses alone", crosses)):
        x = onehot(chosen)[:, :width]
        best = max(PENALTIES, key=lambda c: auc(label[chosen:fitted], fit(chosen, c, x)[chosen:fitted]))
        result[name] = auc(label[fitted:], fit(fitted, best, onehot(fitted)[:, :width])[fitted:])

    def trees(fitted, stop):
        numbers = encoded(fitted)
        x = np.column_stack([numbers, item, category, hour, user])
        marks = list(range(numbers.shape[1], x.shape[1] - 1))
        options = {"objective": "binary", "learning_rate": 0.03, "num_leaves": 31, "min_data_in_leaf": 50,
                   "verbosity": -1, "num_threads": 1, "cat_smooth": 20, "lambda_l2": 5.0}  # fmt: skip
        data = lightgbm.Dataset(x[:fitted], label[:fitted], categorical_feature=marks, free_raw_data=False)
        if isinstance(stop, int):
            return lightgbm.train(options, data, stop).predict(x), stop
        tail = lightgbm.Dataset(x[fitted : stop[0]], label[fitted : stop[0]], reference=data)
        model = lightgbm.train({**options, "metric": "auc"}, data, 800, [tail],
                               callbacks=[lightgbm.early_stopping(50, verbose=False)])  # fmt: skip
        return None, model.best_iteration

    _, most = trees(chosen, (fitted,))
    result["LightGBM"] = auc(label[fitted:], trees(fitted, most)[0][fitted:])
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]))

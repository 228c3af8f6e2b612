"""Deliberate mistakes in lesson 17, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug keeps the order": [
        (
            "rewards += [await call for call in asyncio.as_completed(calls)]\n",
            "rewards += [await call for call in calls]\n",
        )
    ],
    "the solution does not keep it": [
        ("rewards += await asyncio.gather(*calls)", "rewards += [await call for call in asyncio.as_completed(calls)]")
    ],
    "the rate is the healthy one's": [('"rate": {"learning_rate": 1e-3}', '"rate": {"learning_rate": 0.2e-3}')],
    "nothing is cut": [('"cut": {"max_completion_length": 2, "mask', '"cut": {"max_completion_length": 4, "mask')],
    "top_k lets all tokens in": [('"top_k": {"top_k": 1}', '"top_k": {"top_k": 16}')],
    "the format is that of the answers": [
        ('f"<answer>{ADD.answer(prompt)}</answer>" in text', "ADD.answer(prompt) in text")
    ],
    "the optimizer holds the model": [("copy.deepcopy(model).parameters()", "model.parameters()")],
    "the KL has TRL's default form": [('"use_bias_correction_kl": False', '"use_bias_correction_kl": True')],
    "the solution keeps the rate": [('"rate": {"learning_rate": 2e-4},', '"rate": {"learning_rate": 1e-3},')],
    "the healthy run's rate is 0": [('"beta": 1e-8, "learning_rate": 1e-6', '"beta": 1e-8, "learning_rate": 0.0')],
    "the diagnosis sees no KL": [("if any(not value < 10 for value in kl):", "if any(value < 0 for value in kl):")],
}

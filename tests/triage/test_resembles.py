"""What an error's words resemble: which known logs, when it is asked, and that it is said to be no finding."""

import json

import pytest

from labkit import triage
from labkit.triage.known import KnownLog, known_logs, words_of
from labkit.triage.resembles import LEAST, resembling

PUSH = [
    '  File "trl/scripts/vllm_serve.py", line 147, in update_named_param',
    "    self.model_runner.model.load_weights(weights=[(name, weight)])",
    "WorkerRefused: the frobnicator took no tensor",
]
ROW = "{'loss': 0.01, 'grad_norm': 0.4, 'kl': 0.01, 'reward': 0.5, 'reward_std': 0.3}\n"
UNKNOWN = "ValueError: the frobnicator of the rollout does not fit the tokenizer of the reference\n"


def log(cause, *lines, source="some/thread#1"):
    return KnownLog(source, cause, words_of(lines))


def test_a_name_is_a_word_and_so_are_its_parts():
    assert words_of(["in update_weights(), v2 of LoadWeights"]) == {
        *("update_weights", "update", "weights", "loadweights", "load")
    }


def test_the_rarer_a_shared_word_is_the_more_it_says():
    known = [
        *(
            log("judge-timeout", "the process has failed", f"judge {word}")
            for word in ("sandbox", "verifier", "scorer")
        ),
        log("sync-or-logprob-mismatch", "the process has failed while pushing weights", source="the/push#2"),
    ]
    (share, first), *_ = resembling(["the process has failed", "pushing of weights"], known)
    assert first.cause == "sync-or-logprob-mismatch" and share > 0.5
    assert (
        "pushing" in first.evidence[0].split(", ")[0] + first.evidence[0].split(", ")[1]
        and "the/push#2" in first.evidence[1]
    )


def test_shares_are_of_one_whole_and_small_ones_are_left_out():
    answers = resembling(PUSH, known_logs())
    shares = [share for share, _ in answers]
    assert shares == sorted(shares, reverse=True) and min(shares) > LEAST and sum(shares) <= 1 + 1e-9
    assert answers[0][1].cause == "sync-or-logprob-mismatch"


def test_a_few_words_resemble_nothing_and_no_error_resembles_health():
    assert not resembling(["Terminated"], known_logs())
    assert not set(triage.QUIET) & {finding.cause for _, finding in resembling(PUSH, known_logs())}


def test_an_error_that_no_rule_knows_gets_a_resemblance_and_says_so():
    diagnosis = triage.diagnose("\n".join(PUSH[2:]) + "\n" + UNKNOWN)
    assert diagnosis.findings[0].kind == "resemblance" and diagnosis.findings[0].confidence == "a resemblance"
    assert len(diagnosis.findings) <= 3 and "most like it:" in str(diagnosis)
    assert json.loads(diagnosis.to_json())["findings"][0]["kind"] == "resemblance"


@pytest.mark.parametrize(
    "text",
    [
        UNKNOWN + ROW * 4,  # it was caught: the run went on
        ROW * 4,
        "RuntimeError: CUDA error: invalid argument\n",  # a rule of its own
        "IndexError: index out of range in self\n",
        "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\n",  # a notice
    ],
)
def test_it_is_not_asked_where_a_rule_holds_or_nothing_broke(text):
    assert "a resemblance" not in {finding.confidence for finding in triage.diagnose(text).findings}


def test_an_error_behind_good_rows_is_no_health():
    found = [one.cause for one in triage.diagnose(ROW * 4 + "ERROR: the scorer's request has failed\n").findings]
    assert "healthy-normal" not in found


def test_of_several_files_the_one_that_broke_is_named(tmp_path):
    (tmp_path / "run.log").write_text(ROW * 4)
    (tmp_path / "err.log").write_text(UNKNOWN)
    diagnosis = triage.diagnose([tmp_path / "run.log", tmp_path / "err.log"])
    assert diagnosis.findings[0].files == (str(tmp_path / "err.log"),)


def test_where_nothing_is_found_it_lists_what_such_logs_turned_out_to_be_and_that_is_no_alarm():
    diagnosis = triage.diagnose("00:26 SUCCESS Step 28 | Time: 7s | Reward: 0.3887 | Throughput: 2408.9 tokens/s\n")
    assert diagnosis.kind == "nothing found" and not diagnosis
    assert 0 < len(diagnosis.turned_out) <= 3 and f"turned out to be {diagnosis.turned_out[0]}" in str(diagnosis)
    assert json.loads(diagnosis.to_json())["turned_out"] == diagnosis.turned_out
    assert not triage.diagnose("IndexError: index out of range in self\n").turned_out
    assert "turned out to be" not in str(triage.diagnose("x\n"))

"""The reply subjects of probes are short, whatever the inbox is, and are forgotten."""

from worker.streams.probe_subjects import ProbeSubjects


def test_the_subject_is_short_and_leads_back_to_the_inbox() -> None:
    probes = ProbeSubjects("_INBOX.w.abc")
    long = "_INBOX." + "x" * 3900
    subject = probes.subject(long, 0.0)
    assert subject.startswith("_INBOX.w.abc.") and len(subject) < 40
    assert probes.inbox(subject) == long


def test_an_inbox_keeps_its_number_while_it_is_probed_and_no_other_has_it() -> None:
    probes = ProbeSubjects("p")
    first, second = probes.subject("a", 0.0), probes.subject("b", 0.0)
    assert first != second
    for now in range(100):
        assert probes.subject("a", float(now)) == first
    assert probes.inbox(first) == "a"


def test_what_is_no_longer_probed_is_forgotten() -> None:
    probes = ProbeSubjects("p")
    subjects = [probes.subject(f"inbox-{number}", number / 10) for number in range(10_000)]
    assert probes.inbox(subjects[0]) is None
    assert probes.inbox(subjects[-1]) == "inbox-9999"
    assert len(probes._inboxes) == len(probes._numbers) <= 301


def test_an_answer_to_nothing_means_nothing() -> None:
    probes = ProbeSubjects("p")
    probes.subject("a", 0.0)
    for subject in ("p", "p.", "p.x", "p.2", "q.1", "p.1.1", "p.²", "p.-1"):
        assert probes.inbox(subject) is None

"""The reference model and its recipe: separate halves, honest questions, weights that transformers loads."""

import multiprocessing
import random
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from linearkv.eval.reference import generator
from linearkv.eval.reference.average import average
from linearkv.eval.reference.batches import (
    CONTEXT,
    CURRICULUM,
    FACT,
    FIRST,
    NONE,
    QUESTION,
    ROW_LENGTHS_DIVIDE,
    SPACE,
    Batches,
    Renaming,
    encode_context,
)
from linearkv.eval.reference.filler import FILLER
from linearkv.eval.reference.generator import HeldOut, TrainingContexts, accepted_answers
from linearkv.eval.reference.inventory import LISTS, Inventory
from linearkv.eval.reference.loose import LooseLanguage
from linearkv.eval.reference.model import ReferenceModel, reference_config
from linearkv.eval.reference.prompt import SYSTEM_PROMPT, chunk_text, prefix_text, suffix_text
from linearkv.eval.reference.prose import Prose, sentences_of
from linearkv.eval.reference.relations import RELATIONS
from linearkv.eval.reference.train import load_reference, question_ids, score
from linearkv.eval.reference.wordings import normalised, noun_wordings, training_wordings

FOLDER = Path(__file__).parents[2] / "linearkv" / "models" / "reference"
WEIGHTS = FOLDER / "model.safetensors"


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Prose:
    """A small document, so that no test depends on what lies on the machine."""
    subjects = ("The harbour master", "A new colleague", "The committee", "Every visitor", "The old clerk", "Our cook")
    actions = ("wrote a long letter about", "never understood", "gave a short talk on", "kept careful records of")
    things = ("the weather in the valley", "the price of timber", "the new timetable", "the repair of the bridge")
    sentences = [f"{s} {a} {t} during the winter." for s in subjects for a in actions for t in things]
    folder = tmp_path_factory.mktemp("prose")
    for number, start in enumerate(range(0, len(sentences), 12)):
        (folder / f"{number}.md").write_text("# Title\n\n" + " ".join(sentences[start : start + 12]) + "\n")
    return Prose(folder)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def test_renamed_answers_are_renamed_wherever_they_stand(tokenizer):
    renaming = Renaming(tokenizer.backend_tokenizer)
    prompt = tokenizer("The bell of Oslo was cast by Anselm Korte. Who cast the bell?\n").input_ids
    answer = tokenizer("Anselm Korte<|im_end|>").input_ids
    ids, kinds = prompt + answer, [CONTEXT] * len(prompt) + [FIRST] + [FACT] * (len(answer) - 1)
    changed = 0
    for seed in range(40):
        made = renaming(ids, kinds, random.Random(seed))
        new = dict(zip(ids, made, strict=True))
        assert made == [new[token] for token in ids] and len(set(new.values())) == len(new)  # one to one
        moved = {token for token, other in new.items() if token != other}
        assert moved <= set(answer[:-1])  # nothing but the answer's words, and not where it ends
        pieces = tokenizer.convert_ids_to_tokens
        assert all(pieces(t).startswith(SPACE) == pieces(new[t]).startswith(SPACE) for t in moved)
        changed += bool(moved)
    assert 10 < changed < 30


def test_word_lists_of_training_and_evaluation_do_not_meet():
    for key, (train, held) in LISTS.items():
        assert not set(train) & set(held), key


def test_values_of_training_and_evaluation_do_not_meet():
    rng = random.Random(0)
    kinds = {relation.value for relation in RELATIONS}
    for kind in sorted(kinds):
        train = {Inventory(held_out=False).value(kind, rng) for _ in range(300)}
        held = {Inventory(held_out=True).value(kind, rng) for _ in range(300)}
        assert not train & held, kind


def test_wordings_of_training_and_evaluation_do_not_meet():
    train = {text for relation in RELATIONS for text in (*relation.says, *relation.asks)}
    held = {text for relation in RELATIONS for text in (*relation.held_says, *relation.held_asks)}
    assert not train & held
    for halves in (FILLER, generator.SAY_FRAMES, generator.ASK_FRAMES, generator.WHO_FRAMES, generator.SECTIONS):
        assert not set(halves[0]) & set(halves[1])
    made = training_wordings().values()
    described = {plain(text) for wordings in made for text in (*wordings.by_entity, *wordings.by_value)}
    for held_texts in (*generator.HELD_BY_ENTITY.values(), *generator.HELD_BY_VALUE.values()):
        assert not {plain(text) for text in held_texts} & described


def plain(wording: str) -> str:
    """Lower case, slots alike, no punctuation, no articles."""
    words = re.sub(r"[^a-z_ ]+", " ", re.sub(r"\{[evn]\}", " _ ", wording.lower())).split()
    return " ".join(word for word in words if word not in ("the", "a", "an"))


def test_no_training_wording_contains_a_held_out_one():
    """Not even as a part, with slots made equal: "Tell me who leads {e}" would contain "Who leads {e}?"."""
    everything = set()
    for relation in RELATIONS:
        wordings = training_wordings()[relation.name]
        for groups, held in ((wordings.says, relation.held_says), (wordings.asks, relation.held_asks)):
            train = [f" {plain(text)} " for group in groups for text in group]
            everything.update(train)
            for text in map(plain, held):
                assert not any(f" {text} " in other for other in train), (relation.name, text)
    say, ask, say_person, ask_person = noun_wordings()
    for groups, held in ((say, 0), (ask, 1), (say_person, 0), (ask_person, 2)):
        frames = (generator.SAY_FRAMES, generator.ASK_FRAMES, generator.WHO_FRAMES)[held][1]
        train = [f" {plain(text)} " for group in groups for text in group]
        everything.update(train)
        for text in map(plain, frames):
            assert not any(f" {text} " in other for other in train), text
    held_anywhere = {tuple(sorted(plain(t).split())) for r in RELATIONS for t in (*r.held_says, *r.held_asks)}
    assert not {tuple(sorted(text.split())) for text in everything} & held_anywhere  # nor its words in another order


def test_a_varied_wording_is_never_a_held_out_one(prose):
    loose, rng = LooseLanguage(prose), random.Random(0)
    held = {normalised(text) for relation in RELATIONS for text in (*relation.held_says, *relation.held_asks)}
    for _ in range(300):
        name = rng.choice(RELATIONS).name
        text = rng.choice(rng.choice(training_wordings()[name].asks))
        assert normalised(loose.vary(text, rng)) not in held


def test_every_relation_has_many_training_wordings():
    for name, wordings in training_wordings().items():
        says, asks = set(wordings.says), set(wordings.asks)  # variants of one line each
        assert len(says) >= 25 and len(asks) >= 25, name
        assert sum(map(len, says)) >= 100 and sum(map(len, asks)) >= 100, name
        assert not any(re.search(r"[()|]|TAIL|TELL|WH|PREP", text) for g in wordings.asks for text in g), name


# Words that say nothing of the relation.
FUNCTION = frozenset(
    re.findall(
        r"\w+",
        """a an and any anyone are as at be been by can did do does each every far for from get has have how i in into
        is it its long many may me much must my no not now of off on one or our out please should than that the their
        them there they this to up us was we were what when where which who whom whose will with you your""",
    )
)
IRREGULAR = {"held": "hold", "kept": "keep", "led": "lead", "built": "build", "sold": "sell", "stood": "stand",
             "gone": "go", "sits": "sit", "gave": "giv", "given": "giv", "made": "mak", "came": "com", "dealt": "deal",
             "found": "find", "spent": "spend", "lies": "li", "shut": "shut", "taken": "tak"}  # fmt: skip


def content_words(wording: str) -> set[str]:
    """Stems of the words that say what a sentence or question is about."""

    def stem(word: str) -> str:
        if word in IRREGULAR:
            return IRREGULAR[word]
        word = re.sub(r"ies$", "y", word) if len(word) > 4 else word
        word = re.sub(r"(?<=...)(ing|ed|es|s|er|ers)$", "", word).rstrip("e")
        return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls" else word

    return {stem(word) for word in re.findall(r"[a-z]+", plain(wording)) if word not in FUNCTION}


def test_training_knows_the_words_of_the_held_out_wordings():
    """A held-out wording is a new frame. Its relation words are in other frames of the same relation, in training."""
    words = covered = pairs = reachable = 0
    for relation in RELATIONS:
        made = training_wordings()[relation.name]
        nouns = set().union(*map(content_words, made.nouns))
        says = nouns.union(*(content_words(text) for group in made.says for text in group))
        asks = nouns.union(*(content_words(text) for group in made.asks for text in group))
        for text in (*relation.held_says, *relation.held_asks):
            found = content_words(text)
            words += len(found)
            covered += len(found & (says | asks))
        for say in map(content_words, relation.held_says):
            for ask in map(content_words, relation.held_asks):
                pairs += 1
                reachable += bool(say & ask) or (say <= says and ask <= asks)
    assert covered >= 0.98 * words
    assert reachable >= 0.98 * pairs


def test_every_relation_has_both_halves():
    for relation in RELATIONS:
        assert relation.says and relation.asks and relation.held_says and relation.held_asks, relation.name


def test_the_same_seed_gives_the_same_questions():
    assert HeldOut(5).questions(3) == HeldOut(5).questions(3)
    assert HeldOut(5).questions(3) != HeldOut(6).questions(3)


@pytest.mark.parametrize("hops", [1, 2])
def test_an_answer_stands_in_its_gold_chunk(hops):
    for question in HeldOut(1).questions(60, hops=hops):
        heading, text = question.chunks[question.gold[-1]]
        assert question.answers[0].lower() in f"{heading or ''} {text}".lower(), question
        assert len(question.gold) == hops and question.hops == hops


def test_a_question_without_answer_has_no_gold_chunk():
    assert all(question.gold == () for question in HeldOut(1).questions(20, hops=0))


def test_chunks_have_about_the_length_asked_for(tokenizer):
    lengths = [
        len(tokenizer.encode(chunk_text(*chunk)))
        for question in HeldOut(2).questions(20, chunks=10, chunk_tokens=100)
        for chunk in question.chunks
    ]
    assert len(lengths) == 200
    assert 80 < sum(lengths) / len(lengths) < 130
    assert max(lengths) < 220


def test_a_question_is_never_ambiguous():
    for question in HeldOut(3).questions(30):
        text = " ".join(text for _, text in question.chunks)
        assert question.question.endswith(("?", "."))
        assert "{" not in text + question.question


def test_accepted_answers_leave_out_articles_and_units():
    assert accepted_answers("the north hall") == ("the north hall", "north hall")
    assert accepted_answers("45 days") == ("45 days", "45")
    assert accepted_answers("Ada Miller") == ("Ada Miller",)


def test_training_contexts_are_deterministic_and_carry_their_answers(prose):
    first = [TrainingContexts(prose, 3).sample([80] * 4, 10) for _ in range(1)]
    assert first == [TrainingContexts(prose, 3).sample([80] * 4, 10)]
    contexts, found, asked = TrainingContexts(prose, 4), 0, 0
    for _ in range(30):
        sample = contexts.sample([80] * 4, 10)
        text = " ".join(f"{heading} {text}" for heading, text in sample.chunks).lower()
        facts = [turn for turn in sample.turns if turn.kind == "fact"]
        asked += len(facts)
        found += sum(turn.answer.lower() in text for turn in facts)
    assert asked > 100
    assert found >= 0.99 * asked


def test_a_row_is_its_pieces_tokenised_alone(prose, tokenizer):
    sample = TrainingContexts(prose, 8).sample([60, 60], 6)
    encoded = encode_context(tokenizer.backend_tokenizer, sample, 1024)
    assert encoded is not None
    ids, kinds = encoded
    documents = [sample.prefix] * bool(sample.prefix) + [chunk_text(*chunk) for chunk in sample.chunks]
    expected = [token for piece in documents for token in tokenizer.encode(piece)]
    assert ids[: len(expected)] == expected
    assert set(kinds[: len(expected)]) == {CONTEXT}
    assert kinds[len(expected)] == QUESTION
    first = [ids[i] for i in range(len(ids)) if kinds[i] in (FACT, NONE)]
    assert tokenizer.eos_token_id in first
    assert FIRST in kinds


def test_batches_hold_the_same_number_of_tokens_at_every_stage(prose, tokenizer):
    assert all(ROW_LENGTHS_DIVIDE % shape[0] == 0 for _, shapes in CURRICULUM for shape in shapes)
    for share in (0.0, 0.5):
        batches = Batches(tokenizer.backend_tokenizer, prose, ROW_LENGTHS_DIVIDE, multiprocessing.Value("d", share), 0)
        ids, kinds = next(iter(batches))
        assert ids.numel() == ROW_LENGTHS_DIVIDE
        assert ((kinds > 0).float().mean(1) > 0.3).all()


def test_markup_is_left_out_of_prose():
    text = (
        "Intro text that is long enough to keep here.\n\n```\ncode block here\n```\n\n- an item that is long enough.\n"
    )
    assert sentences_of(text) == ["Intro text that is long enough to keep here."]


def test_the_twin_computes_what_transformers_computes():
    torch.manual_seed(0)
    config = reference_config(300, hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    twin = ReferenceModel(config)
    for parameter in twin.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model = Qwen3_5ForCausalLM(config).eval()
    missing = model.load_state_dict(twin.state_dict(), strict=False)
    assert missing.unexpected_keys == [] and missing.missing_keys == ["lm_head.weight"]
    ids = torch.randint(0, 300, (2, 192))
    with torch.no_grad():
        ours, theirs = twin(ids), model(ids).logits
    assert (ours - theirs).abs().max() < 1e-4  # fp32, logits of size 5
    ours, theirs = twin(ids), model(ids).logits
    probe = torch.randn_like(theirs) / theirs.numel() ** 0.5
    (ours * probe).sum().backward()
    (theirs * probe).sum().backward()
    expected = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        reference = expected[name].grad
        assert (parameter.grad - reference).norm() < 1e-3 * reference.norm(), name


def test_forgotten_blocks_leave_nothing_in_the_recurrent_states():
    torch.manual_seed(0)
    config = reference_config(300, hidden_size=64, intermediate_size=96, num_hidden_layers=1)
    assert set(config.layer_types) == {"linear_attention"}
    twin = ReferenceModel(config)
    ids = torch.randint(0, 300, (1, 256))
    other = ids.clone()
    other[:, :64] = torch.randint(0, 300, (1, 64))  # far from the seam, so that the convolution does not see it
    forgotten = torch.tensor([[False, True, False, False]])
    with torch.no_grad():
        kept = [twin.hidden(row)[128:] for row in (ids, other)]
        lost = [twin.hidden(row, forgotten=forgotten)[128:] for row in (ids, other)]
    assert (kept[0] - kept[1]).abs().max() > 1e-3
    assert torch.equal(lost[0], lost[1])


def test_the_folder_is_small_and_complete():
    names = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "README.md"} <= names
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 25e6


def test_the_shipped_weights_give_the_twins_logits(tokenizer):
    model = Qwen3_5ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    assert isinstance(model.config, Qwen3_5TextConfig)
    assert (model.config.linear_key_head_dim, model.config.linear_value_head_dim) == (64, 64)
    twin = load_reference(FOLDER)
    documents, asked = question_ids(tokenizer.backend_tokenizer, HeldOut(4).questions(1, chunks=2)[0])
    ids = torch.tensor([documents + asked])
    padded = torch.nn.functional.pad(ids, (0, -ids.shape[1] % 64))
    with torch.no_grad():
        ours, theirs = twin(padded)[:, : ids.shape[1]], model(ids).logits
    assert (ours - theirs).abs().max() < 1e-3 * theirs.abs().max()


def test_the_shipped_weights_answer(tokenizer):
    """Names and wordings of training in fresh documents: nearly always right. Held-out scores are the evaluation's."""
    questions = HeldOut(9, held_out_names=False, held_out_wording=False).questions(12, chunks=4)
    assert score(load_reference(FOLDER), tokenizer.backend_tokenizer, questions, 2, 768).correct >= 10


def test_a_word_keeps_its_tokens_after_a_space(tokenizer):
    for word in ("Brackwater", "Okonkwo", "copper", "4172"):
        alone = tokenizer.encode(word)
        assert tokenizer.encode(f"to {word}")[-len(alone) :] == alone


def test_the_tokenizer_gives_back_any_text(tokenizer):
    text = "Naïve façade — “quotes”\r\n\tdef f(x): return x_1 + 2**10  # 東京 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_is_the_prompt_format(tokenizer):
    chunk, question = chunk_text("Handbook > Returns", "A kettle can be returned."), "Can it?"
    user = f"Documents:\n\n{chunk}Question: {question}"
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True
    )
    assert shown == prefix_text(SYSTEM_PROMPT) + chunk + suffix_text(question)


def test_questions_are_asked_of_different_entities():
    surfaces = [question.question for question in HeldOut(12).questions(40)]
    assert sum(a == b for a, b in combinations(surfaces, 2)) <= 2


def test_the_mean_of_checkpoints_is_a_checkpoint(tmp_path):
    config = reference_config(300, hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        Qwen3_5ForCausalLM(config).save_pretrained(tmp_path / name)
    average([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")
    a, b, mean = (Qwen3_5ForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b", "mean"))
    assert all(torch.allclose(mean[name], (a[name] + b[name]) / 2) for name in mean)

"""Conversations to continue, each up to a question."""

from __future__ import annotations

_SYSTEM = "You are a helpful assistant. Answer briefly, and show code where it helps."

_TURNS = (
    (
        "How do I read a text file line by line in Python?",
        "Open it with a context manager and iterate over it: `for line in file:`.",
        "And how do I leave out empty lines?",
    ),
    (
        "What is the difference between a list and a tuple?",
        "A list can be changed after it was made, a tuple cannot.",
        "Which of the two can be a key of a dictionary, and why?",
    ),
    (
        "I want to spend three days in Lisbon. What should I see?",
        "Alfama and the castle on the first day, Belém on the second, Sintra on the third.",
        "How do I get to Sintra, and when is it least crowded?",
    ),
    (
        "Explain recursion to someone who is new to programming.",
        "A function that solves a problem by calling itself on a smaller one is recursive.",
        "Show me an example that adds up the numbers in a nested list.",
    ),
    (
        "My bread does not rise. What may be wrong?",
        "The yeast may be old, the water too hot, or the dough has not had enough time.",
        "How can I tell whether the yeast still works?",
    ),
    (
        "Write a function that says whether a word is a palindrome.",
        "def is_palindrome(word):\n    return word == word[::-1]",
        "Now let it ignore spaces, punctuation and case.",
    ),
    (
        "What does a hash table cost to look something up?",
        "Constant time on average, linear time in the worst case.",
        "When does the worst case happen, and what is done against it?",
    ),
    (
        "Please shorten: We are writing to let you know that the meeting was moved to Friday.",
        "The meeting was moved to Friday.",
        "Now write a friendly reply which says that Friday does not suit me.",
    ),
    (
        "Why is the sky blue?",
        "Air scatters short waves of light more than long ones, and blue is short.",
        "Then why is the sun red when it sets?",
    ),
    (
        "Which sorting algorithm does Python use?",
        "Timsort, which merges runs that are already sorted.",
        "Is it stable, and when does that matter?",
    ),
    (
        "Name three ways to save energy at home.",
        "Lower the heating by a degree, close the doors, and switch off what stands by.",
        "Which of them saves most, and roughly how much?",
    ),
    (
        "How do I undo my last commit in git?",
        "`git reset --soft HEAD~1` keeps your changes, `--hard` throws them away.",
        "I have pushed it already. What should I do instead?",
    ),
)

CONVERSATIONS = tuple(
    (
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": follow_up},
    )
    for question, answer, follow_up in _TURNS
)
"""As messages with role and content."""

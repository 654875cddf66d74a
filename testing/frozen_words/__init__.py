"""Frozen words: everything that a rename of code must not touch, held against tests/docs/frozen_words.toml.

Users, stored bytes and other versions of LBG depend on these words: variables, options, exit codes, names on the wire,
JSON, journals, tables, metrics, conditions, paths, schemas, fields. They are collected from the running product.

    PYTHONPATH=tests .venv/bin/python -m testing.frozen_words

adds new words to frozen_words.toml, of the families that are named behind it or of all. It never removes one: delete a
word by hand, with an entry in CHANGELOG.md.
"""

"""The kinds of queue there are beside the plain one, each with its rules, its lines and its policy.

Nothing is imported here: `arguments` needs the rules of a kind, and a kind's policy needs what needs `arguments`.
"""

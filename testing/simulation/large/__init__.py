"""Large groups of mode Exclusive in virtual time: real member machines, a light broker, and what each step costs.

Every process has one core, and is busy for the measured time of each of its steps (`costs`): what comes meanwhile
waits. Judged from outside, by calls of the applications and by the consumers that the broker has.
"""

"""Large groups of mode Exclusive in virtual time: the product's members and the embedded broker's core.

Every process has one core: what it sends and receives, its timers and its assignments take the measured time of the
real process (`costs`), and what comes meanwhile waits. Judged from outside, by calls of the applications and by the
consumers that the broker has.
"""

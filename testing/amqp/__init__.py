"""Both ends of an AMQP connection, and clients that are not LBG's."""

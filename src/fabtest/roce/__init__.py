"""RoCEv2 traffic in a lab: real frames from one server's namespace to another's.

``packets`` builds frames with scapy and reads them; ``capture`` receives them, at servers and at every switch on
their way; ``send`` sends; ``trace`` says which way flows took; ``stream`` is a steady flow of numbered packets that
measures loss and outage. The senders are simple ones, meant to be replaced by an engine behind the same functions.
"""

"""What a change of configuration changes: in files, and in a running fabric.

``configs`` gets the configurations of a folder, a topology or a lab; ``diff`` compares them by what they mean;
``snapshot`` is the state of a running lab, ``compare`` what became of it; ``apply`` makes a change live, as an
engineer would; ``trial`` runs a change with traffic and judges it.
"""

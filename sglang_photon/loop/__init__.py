"""The tick: receive, plan, launch, commit; who may overlap with whom; and how to come to rest."""

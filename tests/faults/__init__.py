"""`make faults`: real servers under checked load, while everything that may go wrong is made to, at random with a seed.

truth         what each generation's scores must be, computed from what was published
load          clients that check every reply, and what is excused when one is lost
committer     whoever publishes: uploads, dropped files, records, rollbacks, new versions
field         the servers of a campaign on one repository, and their end state
injections    what is done to them: the table of kinds, and those that are done to processes
damage        what is done to the repository
hostile       what strangers send to the ports
page          the report
siege         `make -C loadtest siege`: what hostile requests cost everybody else
"""

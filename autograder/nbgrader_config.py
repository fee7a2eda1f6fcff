"""The course as nbgrader sees it: what an instructor may want to change stands here.

`configure` (autograder/course.py) says where the folders are and puts our parts into nbgrader:
intake.py reads submissions, execute.py marks them, feedback.py keeps hidden text off the pages.
"""

from autograder.course import configure

c = get_config()  # noqa: F821  (nbgrader provides it)
configure(c)

c.CourseDirectory.course_id = "flashattention"

# Several graders at once: a PostgreSQL gradebook instead of the file under autograder/work/.
# c.CourseDirectory.db_url = "postgresql://user:password@host/gradebook"

# Grade on this device: "cuda" or "cpu". Unset: AUTOGRADER_DEVICE, else what this machine has.
# c.EngineExecute.device = "cuda"

"""All exercises by id, in the order of the lessons."""

from flashkit.exercises import lesson1, lesson2, lesson3, lesson4, lesson5, lesson6

EXERCISES = {
    exercise.id: exercise
    for lesson in (lesson1, lesson2, lesson3, lesson4, lesson5, lesson6)
    for exercise in lesson.EXERCISES
}
